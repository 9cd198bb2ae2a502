"""Kernel tests run the Triton kernels on a GPU where there is one, else on the CPU through Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
import torch

HAS_GPU = torch.cuda.is_available()

if not HAS_GPU and find_spec("triton"):
    # Triton decides when it is imported; the variable is taken back so that the other tests see the usual environment.
    os.environ["TRITON_INTERPRET"] = "1"
    import wq_kernels.ops.attend.kernel
    import wq_kernels.ops.fit.kernel
    import wq_kernels.ops.pack.kernel
    import wq_kernels.ops.unpack.kernel  # noqa: F401

    del os.environ["TRITON_INTERPRET"]

from wq_kernels import Block, use_backend  # noqa: E402 - the kernels come first


@pytest.fixture
def device() -> torch.device:
    """Where kernels run in this session."""
    return torch.device("cuda" if HAS_GPU else "cpu")


@pytest.fixture
def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Public operations run the Triton kernels, and memory that a kernel forgets to write holds NaN."""
    pytest.importorskip("triton")
    if not HAS_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, _poisoned(getattr(owner, name)))
    with use_backend("triton"):
        yield


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def allocate_poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        return tensor.fill_(float("nan") if tensor.is_floating_point() else 0x5A)

    return allocate_poisoned


@pytest.fixture
def dequantized() -> Callable[[Block], torch.Tensor]:
    """Values of a block in float64, code by code as the README of the kernels draws them."""

    def values(block: Block) -> torch.Tensor:
        if block.bits == 16:
            return block.data.double()
        batch, heads, tokens, words = block.data.shape
        codes = torch.empty(batch, heads, tokens, block.channels, dtype=torch.float64, device=block.data.device)
        for plane in range(16 // block.bits):
            for word in range(words):
                unsigned = block.data[..., word].double() % 2**16
                codes[..., word * 16 // block.bits + plane] = (
                    unsigned.div(2 ** (block.bits * plane)).floor() % 2**block.bits
                )
        codes = codes.view(batch, heads, block.windows, block.window, block.channels)
        scale, minimum = block.scale.double().unsqueeze(3), block.minimum.double().unsqueeze(3)
        return (scale * codes + minimum).view(batch, heads, tokens, block.channels)

    return values
