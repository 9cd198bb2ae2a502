"""Fitted codes: against exhaustive search, least squares and GPTQ in float64; the kernels against PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from wq_kernels import Block, Compensation, fit, use_backend
from wq_kernels.ops.fit.compensation import DAMPING
from wq_kernels.ops.fit.naive import LEAST_WEIGHT, compensated, fit_pair, rounded


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def moment_of(channels: int, *leading: int) -> torch.Tensor:
    """Of queries that look along some directions more than along others."""
    queries = draw(*leading, 200, channels, seed=5) * torch.logspace(0, -2, channels)
    queries = queries @ torch.linalg.qr(draw(channels, channels, seed=6))[0]
    return queries.mT @ queries / 200


@pytest.mark.parametrize("bits", [2, 4])
def test_a_pair_is_the_least_squares_pair_for_its_codes(bits: int) -> None:
    x, weights = draw(1, 1, 1, 32, 8), draw(1, 1, 1, 32, 1, seed=1).abs() + 0.1
    scale, minimum = fit_pair(x, weights, bits)
    codes = rounded(x, scale, minimum, bits)
    for channel in range(8):
        c, y, w = (t[0, 0, 0, :, min(channel, t.shape[-1] - 1)].double().numpy() for t in (codes, x, weights))
        slope, offset = np.polyfit(c, y, 1, w=np.sqrt(w))  # numpy's weights multiply the residuals
        best = (w * (y - slope * c - offset) ** 2).sum()
        ours = (w * (y - float(scale[..., channel]) * c - float(minimum[..., channel])) ** 2).sum()
        assert ours <= best * 1.02


def test_a_pair_is_the_best_of_all_codes_of_a_small_group() -> None:
    x = draw(1, 1, 1, 5, 6, seed=3)
    scale, minimum = fit_pair(x, torch.ones(1, 1, 1, 5, 1), 2)
    ours = ((x - minimum - scale * rounded(x, scale, minimum, 2)) ** 2).sum(dim=3).flatten().numpy()
    best = []
    for channel in range(6):
        y = x[0, 0, 0, :, channel].double().numpy()
        errors = []
        for codes in itertools.product(range(4), repeat=5):
            a = np.stack([np.array(codes, dtype=float), np.ones(5)], axis=1)
            errors.append(((y - a @ np.linalg.lstsq(a, y, rcond=None)[0]) ** 2).sum())
        best.append(min(errors))
    assert (ours >= np.array(best) - 1e-4).all()
    assert ours.sum() <= 2 * sum(best) + 1e-3


def test_compensation_is_gptq_in_float64() -> None:
    """The blocked form against the textbook's, one channel and one token at a time."""
    channels, bits = 40, 2
    x = draw(1, 1, 2, 4, channels)
    queries = draw(200, channels, seed=5) @ draw(channels, channels, seed=6)
    moment, variance = (queries.T @ queries / 200)[None, None], draw(1, 1, channels, seed=9).abs()
    scale, minimum = fit_pair(x, torch.ones(1, 1, 2, 4, 1), bits)
    codes = compensated(x, scale, minimum, bits, Compensation.of(moment, variance))[0, 0].numpy()
    h = moment[0, 0].double().numpy()
    order = np.argsort(-(np.diag(h) * variance[0, 0].double().numpy()), kind="stable")
    h = h[np.ix_(order, order)] / np.diag(h).mean() + DAMPING * np.eye(channels)
    inverse = np.linalg.inv(h)
    differing = 0
    for window, token in itertools.product(range(2), range(4)):
        left = x[0, 0, window, token].double().numpy()[order]
        s, m = (t[0, 0, window, 0].double().numpy()[order] for t in (scale, minimum))
        rest = inverse.copy()
        for j in range(channels):
            code = np.clip(np.round((left[j] - m[j]) / s[j]), 0, 3)
            differing += code != codes[window, token, order[j]]
            error = (left[j] - m[j] - s[j] * code) / rest[j, j]
            left[j + 1 :] -= error * rest[j, j + 1 :]
            rest -= np.outer(rest[:, j], rest[j]) / rest[j, j]  # eliminate the channel
    assert differing <= 3  # of 320: codes at the middle between two


def test_a_moment_of_zeros_compensates_nothing() -> None:
    compensation = Compensation.of(torch.zeros(1, 2, 16, 16), torch.ones(1, 2, 16))
    assert (compensation.shares == 0).all()
    assert torch.equal(compensation.order.sort().values, torch.arange(16).expand(1, 2, -1))


# bits, window, windows, batch, heads, channels, compensated
CASES = [
    *((2, 32, 4, 2, 2, 64, False), (4, 20, 3, 1, 3, 96, False), (2, 75, 2, 1, 2, 48, False)),
    *((4, 16, 2, 1, 2, 256, False), (2, 128, 1, 1, 1, 128, False), (4, 5, 3, 2, 1, 24, False)),
    *((2, 32, 2, 2, 1, 64, True), (4, 20, 1, 1, 2, 80, True), (2, 7, 2, 2, 1, 48, True)),
    *((4, 64, 2, 1, 2, 32, True), (2, 16, 1, 1, 1, 256, True)),
    *(
        pytest.param(bits, 32, 612, 1, 4, 128, compensates, marks=pytest.mark.gpu)
        for bits in (2, 4)
        for compensates in (False, True)
    ),
]


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("bits", "window", "windows", "batch", "heads", "channels", "compensates"), CASES)
def test_kernels_equal_pytorch(
    bits: int, window: int, windows: int, batch: int, heads: int, channels: int, compensates: bool,
    dtype: torch.dtype, device: torch.device, dequantized: Callable[[Block], torch.Tensor],
) -> None:  # fmt: skip
    """Sums in another order move codes that lie between two: few groups differ, and errors do not grow.

    Such a code may take its group to another optimum, better or worse, which averages out over groups.
    """
    # Strides of a [B, L, Hkv, D] projection and keys with a bias.
    length = max(333, window * windows)
    x = (draw(batch, length, heads, channels) * 2 + 3 * draw(channels, seed=1)).to(dtype).transpose(1, 2)
    index = torch.stack([torch.randperm(length)[: windows * window] for _ in range(batch)])
    weights, moment = torch.rand(batch, heads, length), moment_of(channels, batch, heads)
    compensation = Compensation.of(moment, x.float().var(dim=2)) if compensates else None
    with use_backend("torch"):
        expected = fit(x, index, weights, bits=bits, window=window, compensation=compensation)
    if compensation is not None:
        compensation = Compensation(compensation.order.to(device), compensation.shares.to(device))
    arguments = (t.to(device) for t in (x, index, weights))
    stored = fit(*arguments, bits=bits, window=window, compensation=compensation)

    equal = torch.isclose(stored.scale.cpu().float(), expected.scale.float(), rtol=1e-3, atol=1e-6)
    assert equal.float().mean() > 0.98
    # A code that moves takes the later channels of its token along.
    chance = 0.05 / (equal.numel() / (channels if compensates else 1)) ** 0.5
    values = torch.stack([x[b][:, index[b]] for b in range(batch)]).double()
    ours, theirs = (dequantized(block).cpu() - values for block in (stored, expected))
    if compensates:
        ours, theirs = (torch.einsum("bhtd,bhde,bhte->", e, moment.double(), e) for e in (ours, theirs))
        assert ours <= (1 + chance) * theirs
        return
    counts = torch.stack([weights[b][:, index[b]] for b in range(batch)]).unflatten(2, (-1, window)).double()
    counts = (counts / counts.mean(dim=-1, keepdim=True) + LEAST_WEIGHT).flatten(2)[..., None]
    ours, theirs = ((counts * e**2).sum() for e in (ours, theirs))
    assert ours <= (1 + chance) * theirs


@pytest.mark.usefixtures("triton_kernels")
def test_groups_of_one_value_come_back_exactly(
    device: torch.device, dequantized: Callable[[Block], torch.Tensor]
) -> None:
    """Nobody looks at them, and one channel of four is all 0."""
    x = torch.tensor([3.5, -605.0, 0.0, 2.0**-20]).repeat(12).half().expand(1, 2, 40, 48).to(device)
    index, nobody = torch.arange(40, device=device)[None], torch.zeros(1, 2, 40, device=device)
    compensation = Compensation.of(moment_of(48, 1, 2).to(device), torch.zeros(1, 2, 48, device=device))
    for way in (None, compensation):
        block = fit(x, index, nobody, bits=2, window=20, compensation=way)
        assert (block.scale == 0).all()
        assert torch.equal(dequantized(block), x.double())


@pytest.mark.usefixtures("triton_kernels")
def test_no_windows(device: torch.device) -> None:
    x, index = torch.zeros(1, 2, 8, 16, device=device).half(), torch.empty(1, 0, dtype=torch.int64, device=device)
    block = fit(x, index, torch.ones(1, 2, 8, device=device), bits=4, window=32)
    assert (block.windows, block.nbytes) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 8}, "bits must be one of 2, 4, not 8"),
        ({"window": 0}, "window must be positive, not 0"),
        ({"window": 7}, r"index must be int64 \[1, a multiple of 7\]"),
        ({"index": torch.arange(32)[None].int()}, "not torch.int32"),
        ({"x": torch.zeros(1, 1, 32, 16, dtype=torch.int32)}, "x must be floating point"),
        ({"x": torch.zeros(1, 1, 16, 32).mT}, "unit stride"),
        ({"weights": torch.ones(1, 1, 31)}, r"weights must be float32 \[1, 1, 32\], not torch.float32 \[1, 1, 31\]"),
        ({"compensation": Compensation.of(torch.eye(32)[None, None], torch.ones(1, 1, 32))}, r"\[1, 1, 16\]"),
    ],
)
def test_bad_arguments(changes: dict[str, object], message: str) -> None:
    arguments = {"x": torch.zeros(1, 1, 32, 16), "index": torch.arange(32)[None], "weights": torch.ones(1, 1, 32)}
    with pytest.raises(ValueError, match=message):
        fit(**{"bits": 2, "window": 32, **arguments, **changes})
