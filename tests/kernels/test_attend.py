"""Attention over packed segments: against a dense softmax in float64 on the same codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from wq_kernels import Block, Segment, attend, pack, use_backend
from wq_kernels.launch import Card

Values = Callable[[Block], Tensor]
PACKED = [(2, 2), (4, 4), (8, 8), (4, 2), (2, 4), (8, 4), (16, 2), (4, 16), (16, 16)]


@dataclass(frozen=True)
class Case:
    """A cache and queries on it; `shapes` are (key bits, value bits, window, windows) of the segments."""

    shapes: tuple[tuple[int, int, int, int], ...] = ()
    raw_length: int = 0
    queries: int = 1
    heads: tuple[int, int] = (4, 2)
    channels: int = 64
    batch: int = 2
    masked: bool = False

    def __str__(self) -> str:
        shapes = "+".join("K{}V{}x{}x{}".format(*shape) for shape in self.shapes) or "raw"
        mask = "-masked" if self.masked else ""
        return f"{shapes}-L{self.raw_length}-Q{self.queries}-H{self.heads[0]}/{self.heads[1]}-D{self.channels}{mask}"


class Attention:
    """Random tensors of a case, our output on them, and the output of a dense softmax."""

    def __init__(self, case: Case, dtype: torch.dtype, device: str | torch.device = "cpu") -> None:
        self.case, self.dtype = case, dtype
        query_heads, kv_heads = case.heads
        capacity = case.raw_length + 5

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape).to(dtype).to(device)

        # Laid out as a model gives them: [B, tokens, heads, D], seen through a transpose.
        self.query = normal(case.batch, case.queries, query_heads, case.channels).transpose(1, 2)
        self.raw_key = normal(case.batch, capacity, kv_heads, case.channels).transpose(1, 2)
        self.raw_value = normal(case.batch, kv_heads, capacity, case.channels)
        # What lies beyond the tokens in use must not be read.
        self.raw_key[:, :, case.raw_length :] = self.raw_value[:, :, case.raw_length :] = float("nan")
        self.mask = (torch.rand(case.batch, capacity) > 0.4).to(device) if case.masked else None
        self.segments = []
        for key_bits, value_bits, window, windows in case.shapes:
            source = normal(2, case.batch, kv_heads, windows * window, case.channels) * 2 + 1
            index = torch.stack([torch.randperm(windows * window) for _ in range(case.batch)]).to(device)
            with use_backend("torch"):
                key = pack(source[0], index, bits=key_bits, window=window)
                value = pack(source[1], index, bits=value_bits, window=window)
            self.segments.append(Segment(key, value))

    def output(self) -> Tensor:
        """What `attend` gives."""
        length, scaling = self.case.raw_length, self.case.channels**-0.5
        return attend(
            self.query, self.segments, self.raw_key, self.raw_value, length, scaling=scaling, raw_mask=self.mask
        )

    def dense(self, dequantized: Values, dtype: torch.dtype) -> Tensor:
        """Plain attention in one dtype over everything, dequantized and side by side."""
        case, length = self.case, self.case.raw_length
        keys = [*(dequantized(s.key) for s in self.segments), self.raw_key[:, :, :length]]
        values = [*(dequantized(s.value) for s in self.segments), self.raw_value[:, :, :length]]
        group = case.heads[0] // case.heads[1]
        key, value = (torch.cat([t.to(dtype) for t in side], 2).repeat_interleave(group, 1) for side in (keys, values))
        packed = key.shape[2] - length
        visible = torch.ones(case.batch, 1, case.queries, key.shape[2], dtype=torch.bool, device=key.device)
        for i in range(case.queries):
            visible[:, :, i, packed + max(0, length - case.queries + i + 1) :] = False
        if self.mask is not None:
            visible[..., packed:] &= self.mask[:, None, None, :length]
        scores = (self.query.to(dtype) @ key.mT) * case.channels**-0.5
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        return torch.where(visible.any(-1, keepdim=True), weights, 0) @ value


def check(attention: Attention, dequantized: Values) -> None:
    """Half precision: at most twice the error of the same sums in PyTorch at that dtype, and a bound on its mean."""
    exact = attention.dense(dequantized, torch.float64)
    output = attention.output()
    assert output.dtype == attention.dtype
    assert output.shape == attention.query.shape
    error = output.double() - exact
    if attention.dtype == torch.float64:
        assert error.abs().max() < 1e-13
    elif attention.dtype == torch.float32:
        assert error.abs().max() < 1e-5
    else:
        plain = attention.dense(dequantized, attention.dtype).double() - exact
        assert error.abs().max() <= 2 * plain.abs().max()
    if attention.dtype == torch.float16:
        assert error.norm() < 0.005 * exact.norm()


MATRIX = [
    *(Case(((key, value, 32, 3),)) for key, value in PACKED),
    *(Case(((2, 2, *windows),), raw_length=3) for windows in ((1, 1), (15, 1), (63, 2), (128, 1), (31, 7))),
    *(Case(((2, 4, 20, 3),), heads=heads) for heads in ((4, 4), (28, 4), (16, 2), (24, 1), (6, 3))),
    *(Case(((2, 2, 32, 2), (4, 4, 32, 1)), raw_length=9, channels=channels) for channels in (64, 80, 96, 128)),
    *(
        Case(((8, 2, 33, 2), (2, 16, 5, 3)), raw_length=6, queries=5, channels=channels)
        for channels in (16, 48, 112, 256)
    ),
    *(Case(((2, 2, 16, 3),), raw_length=40, queries=queries, masked=queries == 5) for queries in (2, 5, 40)),
    Case(((16, 16, 32, 2), (4, 4, 32, 3), (2, 2, 32, 20)), raw_length=70, queries=3, heads=(7, 1)),
    Case(((2, 2, 32, 0), (4, 4, 32, 2), (16, 16, 8, 0)), raw_length=1),
    # More windows than share a product of minima; windows of one, two and four tiles.
    Case(((2, 2, 32, 34), (4, 4, 32, 2)), raw_length=3, heads=(7, 1), channels=128, batch=1),
    Case(((4, 2, 64, 17), (2, 4, 16, 18)), heads=(3, 1), batch=1),
    Case(((2, 8, 64, 2), (8, 2, 32, 17)), heads=(8, 1), channels=128, batch=1),
    Case(raw_length=130, masked=True),
    Case(raw_length=7, queries=7),
]
matrix = pytest.mark.parametrize("case", MATRIX, ids=str)

# On a GPU only: lengths, heads and numbers of query rows as in use.
LARGE = [
    Case(((16, 16, 32, 12), (4, 4, 32, 55), (2, 2, 32, 545)), raw_length=300, heads=(28, 4), channels=128),
    Case(((2, 2, 32, 128),), raw_length=1, heads=(4, 4), batch=8),
    Case(((4, 4, 32, 128),), raw_length=1000, heads=(28, 4), channels=128, queries=33, masked=True),
    Case(((4, 2, 64, 31), (2, 2, 48, 20), (8, 8, 1000, 2)), raw_length=4097, heads=(16, 2), channels=128),
    Case(((2, 2, 4097, 1), (16, 2, 32, 9)), raw_length=63, heads=(8, 1), channels=80, queries=200),
]


@matrix
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_pytorch(case: Case, dtype: torch.dtype, dequantized: Values) -> None:
    check(Attention(case, dtype), dequantized)


@pytest.mark.usefixtures("triton_kernels")
@matrix
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)], ids=str)
def test_kernel(case: Case, dtype: torch.dtype, device: torch.device, dequantized: Values) -> None:
    check(Attention(case, dtype, device), dequantized)


@pytest.mark.usefixtures("triton_kernels")
@matrix
def test_kernel_in_float32(case: Case, device: torch.device, dequantized: Values) -> None:
    if device.type == "cuda":
        pytest.skip("on a GPU float32 runs in PyTorch")
    check(Attention(case, torch.float32), dequantized)


@pytest.mark.gpu
@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_kernel_at_size(case: Case, dtype: torch.dtype, dequantized: Values) -> None:
    check(Attention(case, dtype, "cuda"), dequantized)


def test_many_pieces_in_pytorch(monkeypatch: pytest.MonkeyPatch, dequantized: Values) -> None:
    from wq_kernels.ops.attend import naive

    monkeypatch.setattr(naive, "PIECE_ELEMENTS", 2048)
    case = Case(((2, 2, 32, 9), (4, 8, 20, 4)), raw_length=77, queries=6, masked=True)
    check(Attention(case, torch.float32), dequantized)


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize("multiprocessors", [1, 1000])
def test_kernel_shares(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, dequantized: Values, multiprocessors: int
) -> None:
    """Programs that take everything one after the other, and programs of a tile each."""
    from wq_kernels.ops.attend import kernel

    monkeypatch.setattr(kernel, "card", lambda device: Card(multiprocessors, 2**16))
    monkeypatch.setattr("wq_kernels.launch.MIN_TOKENS_PER_SPLIT", 1)
    kernel.plan_attend.cache_clear()
    case = Case(((16, 16, 32, 2), (4, 4, 32, 9), (2, 2, 100, 3)), raw_length=50, batch=1)
    check(Attention(case, torch.float16, device), dequantized)
    kernel.plan_attend.cache_clear()


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize("rise", [-60.0, 0.0, 7.5, 9.0, 60.0])
@pytest.mark.parametrize("window", [32, 512])
def test_scores_that_rise(device: torch.device, dequantized: Values, rise: float, window: int) -> None:
    """Scores of later tokens are so many powers of two above those of the first 32: weights follow them or not."""
    attention = Attention(Case(((4, 2, window, 2),), raw_length=2, heads=(4, 1), batch=1), torch.float16, device)
    direction = torch.nn.functional.normalize(torch.randn(64), dim=0).to(device)
    level = torch.where(torch.arange(2 * window, device=device) < 32, 0.0, rise / 1.4427)
    # Scores are q . k / 8 in base e.
    keys = (torch.randn(1, 1, 2 * window, 64) * 0.1).to(device) + level[:, None] * direction
    index = torch.arange(2 * window, device=device)[None]
    with use_backend("torch"):
        attention.segments[0] = Segment(pack(keys.half(), index, bits=4, window=window), attention.segments[0].value)
    attention.query[:] = 8 * direction
    check(attention, dequantized)


@pytest.mark.parametrize(
    ("widths", "launched"),
    [
        ([(2, 2)], [(4, 4), (2, 2)]),
        ([(4, 4)], [(4, 4), (2, 2)]),
        ([(2, 2), (4, 4)], [(4, 4), (2, 2)]),
        ([(4, 2)], [(4, 2)]),
        ([(16, 16), (2, 2)], [(16, 16), (2, 2)]),
        ([(2, 2), (2, 2)], [(2, 2), (2, 2)]),
        ([], []),
    ],
)
def test_usual_widths_are_compiled_together(widths: list[tuple[int, int]], launched: list[tuple[int, int]]) -> None:
    from wq_kernels.ops.attend.kernel import with_usual_widths

    case = Case(tuple((*pair, 32, 2) for pair in widths))
    segments = Attention(case, torch.float16).segments
    given = with_usual_widths(segments)
    assert [(segment.key.bits, segment.value.bits) for segment in given] == launched
    assert sum(segment.tokens for segment in given) == 64 * len(widths)


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize("length", [1, 16, 40])
def test_length_on_the_device(device: torch.device, dequantized: Values, length: int) -> None:
    """One launch for every length, as a CUDA graph replays it: planned for all that the run has room for."""
    attention = Attention(Case(((2, 2, 32, 2),), raw_length=length, queries=1), torch.float16, device)
    expected = attention.dense(dequantized, torch.float64)
    output = attend(
        attention.query, attention.segments, attention.raw_key, attention.raw_value,
        torch.tensor([length], dtype=torch.int32, device=device), scaling=attention.case.channels**-0.5,
    )  # fmt: skip
    assert (output.double() - expected).norm() < 0.005 * expected.norm()


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest, device: torch.device) -> torch.device:
    """Runs a test with either implementation; gives the device of its tensors."""
    if request.param == "triton":
        request.getfixturevalue("triton_kernels")
        return device
    return torch.device("cpu")


def test_order_of_windows_does_not_matter(backend: torch.device) -> None:
    dtype = torch.float32 if backend.type == "cpu" else torch.float16
    x = torch.randn(2, 1, 2, 8 * 32, 64).to(backend, dtype)
    query, raw = torch.randn(1, 4, 1, 64).to(backend, dtype), torch.randn(1, 2, 3, 64).to(backend, dtype)
    outputs = []
    for order in (torch.arange(8), torch.randperm(8)):
        index = (order.view(8, 1) * 32 + torch.arange(32)).view(1, -1).to(backend)
        segment = Segment(pack(x[0], index, bits=4, window=32), pack(x[1], index, bits=2, window=32))
        outputs.append(attend(query, [segment], raw, raw, 3, scaling=0.125))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-3)


def test_nothing_to_see_gives_zero(backend: torch.device) -> None:
    query, raw = (torch.randn(2, heads, 4, 64).to(backend, torch.float16) for heads in (4, 2))
    assert (attend(query, [], raw, raw, 0, scaling=1.0) == 0).all()
    # Of a raw run of 2 tokens the first two of four rows see none, the third one token, whose value they give.
    output = attend(query, [], raw, raw, 2, scaling=1.0)
    assert (output[:, :, :2] == 0).all()
    torch.testing.assert_close(output[:, :, 2], raw[:, :, 0].repeat_interleave(2, dim=1))
    mask = torch.zeros(2, 4, dtype=torch.bool, device=backend)
    assert (attend(query, [], raw, raw, 4, scaling=1.0, raw_mask=mask) == 0).all()
    assert attend(query[:0], [], raw[:0], raw[:0], 4, scaling=1.0).shape == (0, 4, 4, 64)


def test_segments_in_another_dtype_than_the_queries(backend: torch.device, dequantized: Values) -> None:
    attention = Attention(Case(((16, 2, 32, 2), (4, 16, 32, 1)), raw_length=3), torch.float32, backend)
    attention.query, attention.raw_key, attention.raw_value = (
        t.half() for t in (attention.query, attention.raw_key, attention.raw_value)
    )
    attention.dtype = torch.float16
    check(attention, dequantized)


def test_float16_outliers_stay_finite(backend: torch.device, dequantized: Values) -> None:
    source = torch.randn(2, 2, 64, 64).half()
    source[:, :, 7, 3], source[:, :, 9, 3], source[:, :, 40, 5] = 65504, -65504, 6e4
    block = pack(source.to(backend), torch.arange(64, device=backend).expand(2, -1), bits=2, window=32)
    attention = Attention(Case(raw_length=2), torch.float16, backend)
    attention.segments = [Segment(block, block)]
    attention.query *= 0.001
    error = attention.output().double() - attention.dense(dequantized, torch.float64)
    assert error.abs().max() < 65504 * 2**-9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.zeros(1, 3, 1, 64)}, r"must be \[B, G \* Hkv, Q, D\]"),
        ({"raw_value": torch.zeros(1, 2, 5, 32)}, r"raw_value \[1, 2, 5, 32\]"),
        ({"raw_key": torch.zeros(1, 2, 5, 64).half()}, "must be torch.float32 as query"),
        ({"raw_length": 6}, "between 0 and the capacity 5, not be 6"),
        ({"raw_mask": torch.zeros(1, 4, dtype=torch.bool)}, r"raw_mask must be bool \[1, 5\]"),
        ({"query": torch.zeros(1, 4, 64, 2).mT}, "unit stride along D"),
    ],
)
def test_bad_arguments(changes: dict[str, object], message: str) -> None:
    raw = torch.zeros(1, 2, 5, 64)
    arguments = {"query": torch.zeros(1, 4, 1, 64), "raw_key": raw, "raw_value": raw, "raw_length": 5, "raw_mask": None}
    arguments |= changes
    with pytest.raises(ValueError, match=message):
        attend(segments=[], scaling=1.0, **arguments)


def test_segments_of_other_heads_are_refused() -> None:
    raw = torch.zeros(1, 2, 5, 64)
    block = pack(torch.zeros(1, 1, 32, 64), torch.arange(32).unsqueeze(0), bits=2, window=32)
    with pytest.raises(ValueError, match=r"a segment must be \[1, 2, ., 64\], not \[1, 1, ., 64\]"):
        attend(torch.zeros(1, 4, 1, 64), [Segment(block, block)], raw, raw, 5, scaling=1.0)
