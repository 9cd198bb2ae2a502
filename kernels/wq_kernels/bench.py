"""Decode attention and packing on one NVIDIA GPU, beside other attention on the same shapes (`wq bench kernels`).

Every time is the median over replays of a CUDA graph that holds the same call on as many caches as make 256 MiB: a
model's layers do not find their cache in L2 either. Output is checked against the PyTorch form of the same operation
before anything is timed; a wrong kernel gets no time.
"""

from __future__ import annotations

import itertools
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from wq_kernels.dispatch import choose_backend, use_backend
from wq_kernels.launch import AttendTile, SegmentShape, card, choose_tile
from wq_kernels.layout import Segment
from wq_kernels.ops.attend import attend
from wq_kernels.ops.pack import pack

QUERY_HEADS, KV_HEADS, CHANNELS, WINDOW = 28, 4, 128, 32
SHAPES = [(1, 19600), (8, 19600), (32, 19600), (60, 1024)]
SWEEP_SHAPES = [(1, 19600), (32, 19600)]
SWEEP_REGISTERS = (128, 168, 255)
# Shares of the windows by width.
FORMATS = {"INT2": {2: 1.0}, "INT4": {4: 1.0}, "mix": {16: 0.02, 4: 0.09, 2: 0.89}, "raw": {}}
PACKED_BITS = (2, 4)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SDPA = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
FLASHINFER = "FlashInfer"
# Tokens of a page of FlashInfer's cache, and the memory that it plans in.
PAGE, WORKSPACE_BYTES = 16, 256 * 2**20
COLD_BYTES = 256 * 2**20
# Root mean square of the error over that of the output; two roundings of the output to bfloat16 alone are 0.003.
ERROR_LIMITS = {"bf16": 0.01, "fp16": 0.005}
WRONG = "WRONG"


@dataclass
class Cache:
    """What one layer's attention reads."""

    segments: list[Segment]
    raw_key: Tensor
    raw_value: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes that must move."""
        raw = self.raw_key.numel() * self.raw_key.element_size()
        return sum(segment.nbytes for segment in self.segments) + 2 * raw


@dataclass
class Row:
    """One measurement.

    Attributes:
        name: A peer, one of `FORMATS`, or `pack INT2`.
        nbytes: What must move.
        fraction: Time that these bytes need at copy bandwidth, over the time it took.
        speedup: Time of the fastest peer over its own; None for peers.
        error: Why there is no time.
        tile: Of a sweep, what differs from the tile that would be chosen.
    """

    name: str
    dtype: str
    batch: int
    tokens: int
    median_us: float | None = None
    nbytes: int | None = None
    fraction: float | None = None
    speedup: float | None = None
    error: str | None = None
    tile: dict[str, int] | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether the output was not what PyTorch computes."""
        return self.error is not None and self.error.startswith(WRONG)


def build(shares: dict[int, float], batch: int, tokens: int, dtype: torch.dtype) -> Cache:
    """A cache of random keys and values; without shares everything is in the raw run, else only the tail."""

    def normal(count: int) -> Tensor:
        return torch.randn(batch, KV_HEADS, count, CHANNELS, device="cuda", dtype=dtype)

    windows = tokens // WINDOW if shares else 0
    counts = {bits: round(windows * share) for bits, share in shares.items()}
    if counts:
        counts[min(counts)] += windows - sum(counts.values())
    segments = []
    for bits, count in counts.items():
        index = torch.arange(count * WINDOW, device="cuda").expand(batch, -1)
        key, value = (pack(normal(count * WINDOW), index, bits=bits, window=WINDOW) for _ in range(2))
        segments.append(Segment(key, value))
    tail = tokens - windows * WINDOW
    return Cache(segments, normal(tail), normal(tail))


def median_us(calls: list[Callable[[], object]], replays: int = 21) -> float:
    """Median time of one of the calls, all of them in one CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times: list[float] = []
    for replay in range(replays + 3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        if replay >= 3:
            times.append(float(start.elapsed_time(stop)) * 1e3 / len(calls))
    return statistics.median(times)


def copy_gb_per_second() -> float:
    """Bandwidth of a large copy on the device, bytes read plus bytes written."""
    from triton.testing import do_bench

    source = torch.empty(2**32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    # Not in a graph: there a copy becomes a node for the copy engine, which is slower than the kernel.
    return 2 * source.numel() / do_bench(lambda: target.copy_(source), return_mode="median") / 1e6


def repeats(nbytes: int) -> int:
    """Caches of this size that no L2 holds; not more than a model has layers."""
    return max(1, min(28, -(-COLD_BYTES // nbytes)))


def relative_error(output: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over that of the expected output."""
    return float((output.float() - expected.float()).norm() / expected.float().norm())


def measure(row: Row, calls: list[Callable[[], object]], nbytes: int, gb_per_second: float) -> Row:
    """Fill in the time of a row."""
    row.median_us, row.nbytes = median_us(calls), nbytes
    row.fraction = nbytes / gb_per_second / 1e3 / row.median_us
    return row


def measure_ours(row: Row, gb_per_second: float, tile: AttendTile | None = None) -> Row:
    """Our attention on one format, checked first."""
    dtype = DTYPES[row.dtype]
    query = torch.randn(row.batch, QUERY_HEADS, 1, CHANNELS, device="cuda", dtype=dtype)
    first = build(FORMATS[row.name], row.batch, row.tokens, dtype)
    caches = [first] + [
        build(FORMATS[row.name], row.batch, row.tokens, dtype) for _ in range(repeats(first.nbytes) - 1)
    ]

    def call(cache: Cache) -> Tensor:
        arguments = (query, cache.segments, cache.raw_key, cache.raw_value, cache.raw_key.shape[2])
        if tile is None:
            return attend(*arguments, scaling=CHANNELS**-0.5)
        from wq_kernels.ops.attend import kernel

        return kernel.attend(*arguments, scaling=CHANNELS**-0.5, raw_mask=None, tile=tile)

    with use_backend("torch"):
        expected = attend(
            query, first.segments, first.raw_key, first.raw_value, first.raw_key.shape[2], scaling=CHANNELS**-0.5
        )
    error = relative_error(call(first), expected)
    if not error <= ERROR_LIMITS[row.dtype]:
        row.error = f"{WRONG}: relative error {error:.4f}, no time taken"
        return row
    return measure(row, [lambda cache=cache: call(cache) for cache in caches], first.nbytes, gb_per_second)  # type: ignore[misc]


def measure_peer(row: Row, gb_per_second: float) -> Row:
    """Another attention on raw keys and values, checked first where it is not PyTorch's."""
    dtype = DTYPES[row.dtype]
    query = torch.randn(row.batch, QUERY_HEADS, 1, CHANNELS, device="cuda", dtype=dtype)
    first = build({}, row.batch, row.tokens, dtype)
    nbytes = first.nbytes
    caches = [first] + [build({}, row.batch, row.tokens, dtype) for _ in range(repeats(nbytes) - 1)]
    if row.name == FLASHINFER:
        expected = scaled_dot_product_attention(query, first.raw_key, first.raw_value, enable_gqa=True)[:, :, 0]
        calls = paged_calls(query, caches)
        error = relative_error(calls[0](), expected)
        if not error <= ERROR_LIMITS[row.dtype]:
            row.error = f"{WRONG}: relative error {error:.4f}, no time taken"
            return row
        return measure(row, list(calls), nbytes, gb_per_second)

    def call(cache: Cache) -> Tensor:
        with sdpa_kernel(SDPA[row.name]):
            return scaled_dot_product_attention(query, cache.raw_key, cache.raw_value, enable_gqa=True)

    return measure(row, [lambda cache=cache: call(cache) for cache in caches], nbytes, gb_per_second)  # type: ignore[misc]


def paged_calls(query: Tensor, caches: list[Cache]) -> list[Callable[[], Tensor]]:
    """FlashInfer's decode over the same keys and values, which it wants in pages; the caches are used up.

    Args:
        query: [B, Hq, 1, D].
        caches: Raw runs of whole pages.
    """
    import flashinfer

    batch, heads, _, channels = query.shape
    pages = caches[0].raw_key.shape[2] // PAGE
    paged = []
    while caches:
        cache = caches.pop(0)
        both = torch.stack((cache.raw_key, cache.raw_value), dim=1).unflatten(3, (pages, PAGE))
        paged.append(both.permute(0, 3, 1, 4, 2, 5).flatten(0, 1).contiguous())
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=query.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    first_pages = torch.arange(batch + 1, dtype=torch.int32, device=query.device) * pages
    order = torch.arange(batch * pages, dtype=torch.int32, device=query.device)
    in_last_page = torch.full((batch,), PAGE, dtype=torch.int32, device=query.device)
    wrapper.plan(first_pages, order, in_last_page, heads, KV_HEADS, channels, PAGE, q_data_type=query.dtype)
    flat = query[:, :, 0].contiguous()
    return [lambda pages=pages: wrapper.run(flat, pages) for pages in paged]  # type: ignore[misc]


def measure_pack(row: Row, gb_per_second: float) -> Row:
    """Quantize, reorder and pack the keys of one layer; bytes are those read and those written."""
    bits = int(row.name.removeprefix("pack INT"))
    count = row.tokens // WINDOW * WINDOW
    source = torch.randn(row.batch, KV_HEADS, row.tokens, CHANNELS, device="cuda", dtype=DTYPES[row.dtype])
    index = torch.stack([torch.randperm(count, device="cuda") for _ in range(row.batch)])
    block = pack(source, index, bits=bits, window=WINDOW)
    with use_backend("torch"):
        same = torch.equal(pack(source[:1], index[:1], bits=bits, window=WINDOW).data, block.data[:1])
    if not same:
        row.error = f"{WRONG}: codes differ from PyTorch's, no time taken"
        return row
    nbytes = block.nbytes + source.element_size() * source.numel()
    return measure(row, [lambda: pack(source, index, bits=bits, window=WINDOW)], nbytes, gb_per_second)


def attempt(measurement: Callable[..., Row], row: Row, *arguments: Any) -> Row:
    """A row whatever happens: one failed configuration must not cost the others."""
    try:
        row = measurement(row, *arguments)
    except Exception as failure:
        row.error = f"{type(failure).__name__}: {str(failure)[:200]}"
    torch.cuda.empty_cache()
    return row


def peers() -> list[str]:
    """What can be measured beside us here."""
    return [*SDPA, *([FLASHINFER] if find_spec("flashinfer") else [])]


def compare(gb_per_second: float, deadline: float, on_row: Callable[[Row], None]) -> list[Row]:
    """Peers and every format on every shape, with the speed-up over the fastest peer."""
    rows: list[Row] = []
    for dtype, (batch, tokens) in itertools.product(DTYPES, SHAPES):
        if time.monotonic() > deadline:
            break
        beside = [attempt(measure_peer, Row(name, dtype, batch, tokens), gb_per_second) for name in peers()]
        fastest = min((row.median_us for row in beside if row.median_us), default=None)
        ours = [attempt(measure_ours, Row(name, dtype, batch, tokens), gb_per_second) for name in FORMATS]
        for row in ours:
            if row.median_us and fastest:
                row.speedup = fastest / row.median_us
        packs = [
            attempt(measure_pack, Row(f"pack INT{bits}", dtype, batch, tokens), gb_per_second) for bits in PACKED_BITS
        ]
        for row in (*beside, *ours, *packs):
            rows.append(row)
            on_row(row)
    return rows


def sweep(gb_per_second: float, deadline: float, on_row: Callable[[Row], None]) -> list[Row]:
    """Every format in bf16 with other numbers of registers than those that launch.py chooses."""
    rows: list[Row] = []
    for name, registers, (batch, tokens) in itertools.product(FORMATS, SWEEP_REGISTERS, SWEEP_SHAPES):
        if time.monotonic() > deadline:
            return rows
        shapes = [SegmentShape(bits, bits, WINDOW, 1) for bits in FORMATS[name]]
        chosen = choose_tile(QUERY_HEADS // KV_HEADS, CHANNELS, shapes, card(torch.device("cuda", 0)))
        row = Row(name, "bf16", batch, tokens, tile={"registers": registers})
        rows.append(attempt(measure_ours, row, gb_per_second, replace(chosen, registers=registers)))
        on_row(rows[-1])
    return rows


def count(other_tiles: bool = False) -> int:
    """Rows when the time suffices for all of them."""
    if other_tiles:
        return len(FORMATS) * len(SWEEP_REGISTERS) * len(SWEEP_SHAPES)
    return len(DTYPES) * len(SHAPES) * (len(peers()) + len(FORMATS) + len(PACKED_BITS))


def obstacle() -> str | None:
    """Why nothing can be measured here; None when it can."""
    if not torch.cuda.is_available():
        return "there is no NVIDIA GPU"
    backend = choose_backend(torch.device("cuda"), torch.bfloat16)
    return None if backend.name == "triton" else backend.reason


def run(
    *, other_tiles: bool = False, seconds: float, on_row: Callable[[Row], None] = lambda row: None
) -> tuple[dict[str, Any], list[Row]]:
    """Measure on the first GPU.

    Args:
        other_tiles: Ours with other tiles in place of the peers.
        seconds: No new shape is started after this time.
        on_row: Called with each row.

    Returns:
        The machine, its copy bandwidth and versions; the rows.
    """
    import triton

    deadline = time.monotonic() + seconds
    torch.manual_seed(0)
    gb_per_second = copy_gb_per_second()
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "copy_gb_per_second": gb_per_second,
        "date": time.strftime("%Y-%m-%d"),
    }
    if FLASHINFER in peers():
        machine["flashinfer"] = import_module("flashinfer").__version__
    return machine, (sweep if other_tiles else compare)(gb_per_second, deadline, on_row)
