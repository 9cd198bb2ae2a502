"""Formats that PyTorch reads: codes, errors, bytes, against plain float64 arithmetic."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wq_cli.blocks import (
    ChannelBlock,
    SpectrumBlock,
    TokenQuantizer,
    digits_per_byte,
    pack_digits,
    signal,
    spectrum,
    unpack_digits,
)

F32, F64 = torch.float32, torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.sampled_from([2, 3, 4, 16, 256]), st.integers(1, 40), st.integers(0, 99))
def test_codes_come_back(levels: int, count: int, seed: int) -> None:
    codes = torch.randint(0, levels, (2, count), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    packed = pack_digits(codes, levels)
    assert torch.equal(unpack_digits(packed, levels, count), codes)
    assert packed.shape[1] == -(-count // digits_per_byte(levels))


def test_five_three_level_codes_fill_a_byte() -> None:
    digits = list(itertools.product(range(3), repeat=5))
    packed = pack_digits(torch.tensor(digits, dtype=torch.uint8), 3).flatten().tolist()
    assert packed == [sum(d * 3**p for p, d in enumerate(row)) for row in digits]


@pytest.mark.parametrize("zero_point", ["float", "integer"])
@pytest.mark.parametrize("levels", [3, 4, 16, 256])
def test_per_token_rounding_by_the_equation(levels: int, zero_point: str) -> None:
    """x^ = s * code + min with s = (max - min) / (levels - 1), every group by itself, in float64."""
    x = 3 * normal(1, 2, 5, 8) + 1
    stored = TokenQuantizer(group=4, zero_point=zero_point, dtype=F32).pack(x, levels=levels)  # type: ignore[arg-type]
    read = stored.read(F64)
    for h, t, g in itertools.product(range(2), range(5), range(2)):
        group = x[0, h, t, 4 * g : 4 * g + 4].double()
        step = (group.max() - group.min()) / (levels - 1)
        low = step * (group.min() / step).round() if zero_point == "integer" else group.min()
        code = ((group - low) / step).round().clamp(0, levels - 1)
        torch.testing.assert_close(read[0, h, t, 4 * g : 4 * g + 4], step * code + low, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("levels", "group", "expected"), [(4, 32, 0.392), (16, 32, 0.078), (4, 128, 0.50)])
def test_round_trip_error_of_normal_values(levels: int, group: int, expected: float) -> None:
    """Relative errors of uniform quantizers between the extremes of so many normal values."""
    x = normal(1, 2, 512, 128)
    read = TokenQuantizer(group=group).pack(x, levels=levels).read(F32)
    assert float((read - x).norm() / x.norm()) == pytest.approx(expected, rel=0.02)


def test_clipping_about_zero_moves_a_range_that_excludes_zero_about_its_middle_does_not() -> None:
    x = torch.tensor([10.0, 11.0, 12.0, 13.0]).view(1, 1, 1, 4)

    def ends(about: str) -> list[float]:
        stored = TokenQuantizer(group=4, clip=0.5, clip_about=about, dtype=F32).pack(x, levels=4)  # type: ignore[arg-type]
        return stored.read(F32).flatten()[[0, -1]].tolist()

    assert ends("zero") == [6.5, 6.5]  # of 5 to 6.5, where nothing was
    assert ends("middle") == [10.75, 12.25]


def test_centred_blocks_survive_large_offsets() -> None:
    """Two channels of 64 far from zero: without their mean the others lose everything."""
    x = normal(1, 2, 70, 64)
    shifted = x.clone()
    shifted[..., :2] += torch.tensor([100.0, -100.0])
    errors = [
        float((TokenQuantizer(group=64, centred=c).pack(shifted, levels=4).read(F32) - shifted).norm())
        for c in (False, True)
    ]
    assert errors[0] > 10 * x.norm()
    assert errors[1] < 0.55 * x.norm()


def test_groups_of_any_channels_equal_groups_of_neighbours_after_a_permutation() -> None:
    x, order = normal(1, 2, 6, 16), torch.randperm(32, generator=torch.Generator().manual_seed(1))
    groups = torch.empty(32, dtype=torch.uint8)
    groups[order] = torch.arange(32, dtype=torch.uint8) // 8
    flat = x.transpose(1, 2).reshape(1, 6, 32)
    permuted = flat[..., order].view(1, 6, 2, 16).transpose(1, 2)
    expected = TokenQuantizer(group=8).pack(permuted, levels=4).read(F32)
    back = expected.transpose(1, 2).reshape(1, 6, 32)[..., order.argsort()].view(1, 6, 2, 16).transpose(1, 2)
    stored = TokenQuantizer(groups=groups.view(2, 16)).pack(x, levels=4)
    assert torch.equal(stored.read(F32), back)


@pytest.mark.parametrize(
    ("how", "levels", "bits"),
    [
        ({"group": 32}, 4, 2 + 32 / 32),
        ({"group": 128}, 4, 2 + 32 / 128),
        ({"group": 128, "dtype": torch.float8_e4m3fn}, 4, 2 + 16 / 128),
        ({"group": 64, "centred": True}, 4, 2 + 32 / 64 + 16 / 32),
        ({"group": 128}, 256, 8 + 32 / 128),
    ],
)
def test_bits_of_a_token_block(how: dict[str, object], levels: int, bits: float) -> None:
    x = normal(1, 2, 64, 64)
    stored = TokenQuantizer(**how).pack(x, levels=levels)  # type: ignore[arg-type]
    assert 8 * stored.nbytes / x.numel() == bits
    tensors = [t for t in vars(stored).values() if isinstance(t, torch.Tensor)]
    assert stored.nbytes == sum(t.nelement() * t.element_size() for t in tensors)
    assert stored.metadata_nbytes == stored.nbytes - stored.data.nelement()


def test_three_levels_by_hand() -> None:
    x = torch.tensor([4.0, -4.0, 1.0, -1.0, 0.0, 2.0]).view(1, 1, 6, 1)
    # The mean magnitude is 2: what is above 1 becomes 2, what is at most 1 becomes 0.
    assert ChannelBlock.of_sign(x, 3, 6).read(F32).flatten().tolist() == [2, -2, 0, 0, 0, 2]
    assert ChannelBlock.of_sign(x, 2, 6).read(F32).flatten().tolist() == [2, -2, 2, -2, -2, 2]


@pytest.mark.parametrize("n", [0, 1, 2, 5, 32, 33])
def test_a_spectrum_of_real_numbers_is_orthonormal_and_comes_back(n: int) -> None:
    x = normal(3, n).double()
    made = spectrum(x)
    assert made.shape == x.shape
    torch.testing.assert_close(signal(made), x)
    if n > 1:
        complex_half = torch.fft.fft(x, norm="ortho")[:, : n // 2 + 1]
        torch.testing.assert_close(made[:, : n // 2 + 1], complex_half.real)
        torch.testing.assert_close(made[:, n // 2 + 1 :], complex_half.imag[:, 1 : (n + 1) // 2])


def test_a_spectrum_block_keeps_wide_channels_and_counts_its_bytes() -> None:
    x = normal(1, 2, 64, 16)
    wide_channels = torch.tensor([3, 7], dtype=torch.int16)
    rest = [c for c in range(16) if c not in (3, 7)]
    wide = ChannelBlock.of_range(x[..., [3, 7]], 4, 32)
    signs = ChannelBlock.of_sign(spectrum(x[..., rest]), 2, 32)
    stored = SpectrumBlock(wide, signs, wide_channels)
    read = stored.read(F32)
    assert torch.equal(read[..., [3, 7]], wide.read(F32))
    torch.testing.assert_close(read[..., rest], signal(signs.read(F32)))
    # Codes of 2 channels at 2 bits fill a byte, those of 14 at 1 bit two; then pairs, scales and 2 channel numbers.
    assert stored.nbytes == 2 * 64 * (1 + 2) + 2 * 2 * (2 * 2 * 2 + 14 * 2) + 4
