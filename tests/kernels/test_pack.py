"""Quantizer and packing: cases computed by hand, bounds from theory, kernel equal to PyTorch."""

from collections.abc import Callable

import pytest
import torch

from wq_kernels import Block, pack, unpack

IN_ORDER = torch.arange(4096).unsqueeze(0)


def column(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A head of 16 channels that all hold these tokens."""
    return torch.tensor(values, dtype=dtype).view(1, 1, -1, 1).expand(-1, -1, -1, 16).contiguous()


def word_list(block: Block) -> list[list[int]]:
    return (block.data[0, 0].long() & 0xFFFF).tolist()


def test_hand_computed_two_bits() -> None:
    # Range 6 in 3 steps: scale 2, minimum -1; 0 is half a step up and ties go to the even code 0, 2 to the even 2.
    stored = pack(column([-1.0, 5.0, 0.0, 2.0, 1.4]), IN_ORDER[:, :5], bits=2, window=5)
    assert (stored.scale == 2).all()
    assert (stored.minimum == -1).all()
    assert word_list(stored) == [[code * 0x5555] * 2 for code in (0, 3, 0, 2, 1)]
    assert unpack(stored, torch.float32)[0, 0, :, 3].tolist() == [-1.0, 5.0, -1.0, 3.0, 1.0]


def test_hand_computed_integer_zero_point() -> None:
    # Scale 2, zero point -round(-1 / 2) = 0 (half to even): the minimum becomes 0, codes are round(x / 2) clamped.
    stored = pack(column([-1.0, 5.0, 0.0, 3.0]), IN_ORDER[:, :4], bits=2, window=4, zero_point="integer")
    assert (stored.scale == 2).all()
    assert (stored.minimum == 0).all()
    assert word_list(stored) == [[code * 0x5555] * 2 for code in (0, 2, 0, 2)]


def ramp(channels: int, top: int) -> torch.Tensor:
    """Four tokens of D channels: the codes 0, 1, 2, ... and top minus them; the last two set the range."""
    codes = torch.arange(channels, dtype=torch.float32) % (top + 1)
    return torch.stack([codes, top - codes, torch.zeros(channels), torch.full((channels,), float(top))]).view(
        1, 1, 4, -1
    )


def test_hand_computed_words() -> None:
    # 2 bits, 16 channels, 2 words, each of codes 0 1 2 3 0 1 2 3 from the low end.
    stored = pack(ramp(16, 3), IN_ORDER[:, :4], bits=2, window=4)
    assert word_list(stored) == [[0xE4E4] * 2, [0x1B1B] * 2, [0, 0], [0xFFFF] * 2]
    # 4 bits, 16 channels, 4 words.
    stored = pack(ramp(16, 15), IN_ORDER[:, :4], bits=4, window=4)
    assert word_list(stored)[:2] == [[0x3210, 0x7654, 0xBA98, 0xFEDC], [0xCDEF, 0x89AB, 0x4567, 0x0123]]
    # 8 bits, 48 channels, 24 words.
    stored = pack(ramp(48, 255), IN_ORDER[:, :4], bits=8, window=4)
    assert word_list(stored)[0] == [channel + (channel + 1) * 256 for channel in range(0, 48, 2)]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_integer_zero_point_follows_the_equations(bits: int, dequantized: Callable[[Block], torch.Tensor]) -> None:
    x = torch.randn(1, 2, 64, 16) * 3 + torch.linspace(-20, 20, 16)
    stored = pack(x, IN_ORDER[:, :64], bits=bits, window=32, zero_point="integer")
    group = x.view(1, 2, 2, 32, 16).double()
    scale = stored.scale.double().unsqueeze(3)
    zero = -torch.round(group.amin(3, keepdim=True) / scale)
    codes = (torch.round(group / scale) + zero).clamp(0, 2**bits - 1)
    expected = (scale * (codes - zero)).view(1, 2, 64, 16)
    assert (stored.scale / ((group.amax(3) - group.amin(3)) / (2**bits - 1)) - 1).abs().max() < 2**-11
    # The stored minimum is rounded to float16; float32 may move a value over the edge between two codes: almost none.
    error = (dequantized(stored) - expected).abs().view_as(group)
    rounding = scale * zero.abs() * 2**-11 + 1e-4
    assert (error > rounding).float().mean() < 2e-3
    assert (error <= scale * 1.0001 + rounding).all()


@pytest.mark.parametrize(
    ("bits", "zero_point", "expected"),
    [(2, "float", 0.392), (4, "float", 0.078), (2, "integer", 0.405), (4, "integer", 0.081)],
)
def test_round_trip_error_of_normal_values(bits: int, zero_point: str, expected: float) -> None:
    x = torch.randn(1, 8, 4096, 64)
    restored = unpack(pack(x, IN_ORDER, bits=bits, window=32, zero_point=zero_point), torch.float32)
    assert ((restored - x).norm() / x.norm()).item() == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_error_is_at_most_half_a_step(
    bits: int, dtype: torch.dtype, dequantized: Callable[[Block], torch.Tensor]
) -> None:
    x = (torch.randn(2, 2, 96, 16) * 4 + 2).to(dtype)
    stored = pack(x, IN_ORDER[:, :96].expand(2, -1), bits=bits, window=32)
    step = stored.scale.double().repeat_interleave(32, dim=2)
    # Scale and minimum are rounded to float16: half a unit in the last place of each, times the code for the scale.
    minimum = stored.minimum.double().repeat_interleave(32, dim=2)
    slack = (step * (2**bits - 1) + minimum.abs()) * 2**-11
    assert ((dequantized(stored) - x.double()).abs() <= step / 2 * (1 + 1e-5) + slack).all()


@pytest.mark.parametrize("zero_point", ["float", "integer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_constant_groups_are_exact(dtype: torch.dtype, zero_point: str) -> None:
    x = torch.tensor([0.0, 1.5, -605.0, 2.0**-20, 2.0**15] * 16, dtype=dtype).expand(1, 2, 32, 80).contiguous()
    stored = pack(x, IN_ORDER[:, :32], bits=2, window=32, zero_point=zero_point)
    assert (stored.scale == 0).all()
    assert torch.equal(unpack(stored, dtype), x)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_float16_outliers_stay_finite(bits: int) -> None:
    x = torch.randn(1, 1, 64, 16).half()
    x[0, 0, 3, 0], x[0, 0, 40, 1], x[0, 0, 5, 2], x[0, 0, 6, 2] = 6e4, -6e4, 65504.0, -65504.0
    stored = pack(x, IN_ORDER[:, :64], bits=bits, window=32)
    restored = unpack(stored, torch.float16)
    assert stored.scale.isfinite().all()
    assert restored.isfinite().all()
    assert restored[0, 0, 3, 0].item() == pytest.approx(6e4, rel=2e-3)
    assert restored[0, 0, 6, 2].item() == -65504.0


def test_integer_zero_point_of_float16_outliers_stays_finite() -> None:
    # Scale 33664: the multiple of it that is nearest to -60000 is -67328, which float16 does not have.
    x = column([-60000.0, 40992.0, 10848.0, -3888.0], torch.float16)
    stored = pack(x, IN_ORDER[:, :4], bits=2, window=4, zero_point="integer")
    assert (stored.minimum == -65504).all()
    assert ((unpack(stored, torch.float16) - x).abs() <= 33664 / 2 + 67328 - 65504).all()


def test_ranges_beyond_float16_stay_finite() -> None:
    # 3e38 - -3e38 overflows float32 too.
    stored = pack(column([3e38, -3e38, 0.0, 1.0]), IN_ORDER[:, :4], bits=2, window=4)
    assert (stored.scale == 65504).all()
    assert (stored.minimum == -65504).all()
    assert unpack(stored, torch.float32)[0, 0, :, 0].tolist() == [131008.0, -65504.0, 0.0, 0.0]


def test_index_gathers_and_repeats() -> None:
    x = torch.randn(2, 3, 50, 16)
    index = torch.randint(0, 50, (2, 40))
    expected = torch.stack([x[b][:, index[b]] for b in range(2)])
    assert torch.equal(unpack(pack(x, index, bits=16, window=20), torch.float32), expected)
    assert torch.equal(
        pack(x, index, bits=4, window=20).data, pack(expected, IN_ORDER[:, :40].expand(2, -1), bits=4, window=20).data
    )


def test_no_windows() -> None:
    for bits in (2, 16):
        stored = pack(torch.randn(1, 2, 10, 16), IN_ORDER[:, :0], bits=bits, window=32)
        assert (stored.windows, stored.nbytes) == (0, 0)
        assert unpack(stored, torch.float32).shape == (1, 2, 0, 16)


CASES = [
    *((2, 32, 1, channels) for channels in (16, 32, 64, 80, 96, 128)),
    *((4, 32, 1, 80), (4, 32, 1, 96), (8, 32, 1, 128)),
    *((2, 20, 2, 64), (4, 1, 3, 16), (2, 75, 1, 64), (8, 7, 3, 32)),
]


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize("zero_point", ["float", "integer"])
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("bits", "window", "windows", "channels"), CASES)
def test_kernel_equals_pytorch(
    bits: int, window: int, windows: int, channels: int, dtype: torch.dtype, zero_point: str, device: torch.device
) -> None:
    # Strides of a [B, L, Hkv, D] projection, an outlier, a constant channel, an offset channel.
    x = (torch.randn(2, 333, 3, channels) * 5 + 3).to(dtype).transpose(1, 2)
    x[:, :, 5], x[..., 3], x[..., 7] = 6e4, 1.5, x[..., 7] + 600
    x[:, :, 6, 9], x[:, :, 7, 9] = -6e4, 41e3
    index = torch.randint(0, 333, (2, windows * window))
    expected = pack_in_pytorch(x, index, bits=bits, window=window, zero_point=zero_point)
    stored = pack(x.to(device), index.to(device), bits=bits, window=window, zero_point=zero_point)
    assert torch.equal(stored.scale.cpu(), expected.scale)
    assert torch.equal(stored.minimum.cpu(), expected.minimum)
    assert torch.equal(stored.data.cpu(), expected.data)


def pack_in_pytorch(x: torch.Tensor, index: torch.Tensor, **options: object) -> Block:
    from wq_kernels import use_backend

    with use_backend("torch"):
        return pack(x, index, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "bits must be one of 2, 4, 8 .packed. or 16 .raw., not 3"),
        ({"window": 0}, "window must be positive, not 0"),
        ({"window": 7}, r"index must be int64 \[1, a multiple of 7\]"),
        ({"zero_point": "none"}, "zero_point must be one of float, integer, not none"),
        ({"index": IN_ORDER[:, :32].int()}, "not torch.int32"),
        ({"x": torch.zeros(1, 1, 32, 4, dtype=torch.int32)}, "x must be floating point"),
        ({"x": torch.zeros(1, 1, 4, 32).mT}, "unit stride"),
    ],
)
def test_bad_arguments(changes: dict[str, object], message: str) -> None:
    arguments = {"x": torch.zeros(1, 1, 32, 4), "index": IN_ORDER[:, :32], "bits": 2, "window": 32} | changes
    with pytest.raises(ValueError, match=message):
        pack(**arguments)
