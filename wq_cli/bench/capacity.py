"""The most requests, or frames, that a card holds: tried out under an allocator that gets no more memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface

from wq_cli import decoding, device, engine
from wq_cli.attention import ATTENTION, windowed_attention
from wq_cli.config import Generation
from wq_cli.errors import DeviceError

if TYPE_CHECKING:
    from wq_cli.config import Quantization
    from wq_cli.models.base import Prompt, VideoModel

# Sizes that memory is measured at first, to begin the search where a line through them meets the limit.
_PROBES = (32, 64)
# Share of the answer by which it may be too low.
PRECISION = 0.02
# Where tensors are counted, a try takes up to 20 times as much: activations and copies are not counted.
TAKEN_PER_COUNTED = 32


class Capacity:
    """Memory of prefill and decoding as a function of a size.

    On a GPU it is what the allocator gives under a limit; elsewhere the tensors of weights, prompts and cache are
    counted, since an allocator without a limit cannot refuse. What the driver itself takes comes on top.

    Args:
        model: Its weights count.
        settings: Of the cache.
        prompts: Prompts of a size.
        without_arithmetic: Leave the arithmetic of matrix products and of attention out and their tensors in: where the
            memory of a large card ends it would take minutes a try, attention hours.
    """

    def __init__(
        self,
        model: VideoModel,
        settings: Quantization,
        prompts: Callable[[int], list[Prompt]],
        without_arithmetic: bool = False,
    ) -> None:
        self._model, self._settings, self._prompts = model, settings, prompts
        self._without_arithmetic = without_arithmetic

    def within(self, limit_bytes: int) -> int:
        """The largest size that runs in so much memory, to within 2% of it; 0 where none does.

        Raises:
            DeviceError: The device has too little memory to try it.
        """
        with _limited(self._model.device, limit_bytes):
            self._check_room(limit_bytes)
            needed = [self._bytes(size) for size in _PROBES]
            start = 1
            if needed[0] and needed[1] and needed[1] > needed[0]:
                per_step = (needed[1] - needed[0]) / (_PROBES[1] - _PROBES[0])
                start = max(1, int(_PROBES[0] + (limit_bytes - needed[0]) / per_step))
            return largest(lambda size: (self._bytes(size) or limit_bytes + 1) <= limit_bytes, start)

    def _check_room(self, limit_bytes: int) -> None:
        """A limit above what is there would be one of less memory on a GPU, and the end of this process elsewhere."""
        where = self._model.device
        free, _ = device.memory(where)
        if free is None:
            return
        most = free + self._weight_bytes if where.type == "cuda" else free // TAKEN_PER_COUNTED
        if limit_bytes > most:
            raise DeviceError(f"`{where}` has memory to try {most / 1e9:.3g} GB, not {limit_bytes / 1e9:g}")

    @property
    def _weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self._model.model.parameters())

    def _bytes(self, size: int) -> int | None:
        """Peak of a prefill and two tokens; None where there is too little memory."""
        model = self._model
        device.reset_peak(model.device)
        try:
            with _arithmetic_left_out() if self._without_arithmetic else nullcontext():
                prompts = self._prompts(size)
                request = engine.prepare(model, prompts, self._settings, room=2)
                state = engine.prefill(model, request)
            for _ in decoding.decode(model, state, Generation(max_new_tokens=2), stop_at_eos=False):
                pass
            if model.device.type == "cuda":
                return device.peak_bytes(model.device)
            return self._weight_bytes + request.batch.embeds.nbytes + state.cache.nbytes
        except torch.OutOfMemoryError:
            return None
        finally:
            prompts = request = state = None  # type: ignore[assignment]
            if model.device.type == "cuda":
                gc.collect()
                torch.cuda.empty_cache()


def largest(fits: Callable[[int], bool], start: int) -> int:
    """The largest size that fits, or one at most 2% lower; 0 where not even 1 does.

    Args:
        fits: Whether a size does; no size does beyond one that does not.
        start: Where to begin, at least 1; the nearer the fewer tries.
    """
    step = max(1, int(PRECISION * start))
    low = high = start
    while low > 0 and not fits(low):
        low, high, step = max(0, low - step), low, 2 * step
    if low == start:
        high = low + step
        while fits(high):
            low, high, step = high, high + 2 * step, 2 * step
    while high - low > max(1, int(PRECISION * low)):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


@contextmanager
def _limited(where: torch.device, limit_bytes: int) -> Iterator[None]:
    """On a GPU, PyTorch gets no more than this."""
    if where.type != "cuda":
        yield
        return
    before = torch.cuda.get_per_process_memory_fraction(where)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(where)[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total), where)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, where)


class _ProductsLeftOut(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Matrix products give zeros."""

    PRODUCTS = frozenset(getattr(torch.ops.aten, name).default for name in ("linear", "matmul", "mm", "addmm", "bmm"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in self.PRODUCTS:
            return func(*args, **(kwargs or {}))
        shape = func(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in args), **(kwargs or {}))
        return torch.zeros(shape.shape, dtype=shape.dtype, device=args[0].device)


@contextmanager
def _arithmetic_left_out() -> Iterator[None]:
    """Matrix products give zeros, and attention its queries as the new tensor that its output would be."""

    def copied(module: Any, query: torch.Tensor, *more: Any, **named: Any) -> tuple[torch.Tensor, None]:
        return query.transpose(1, 2).clone(memory_format=torch.contiguous_format), None

    AttentionInterface.register(ATTENTION, copied)
    try:
        with _ProductsLeftOut():  # type: ignore[no-untyped-call]
            yield
    finally:
        AttentionInterface.register(ATTENTION, windowed_attention)
