"""Fitted codes against exhaustive search, float64 least squares and the errors they promise to keep small."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from wq_cli.codecs import ChannelInWindow
from wq_cli.fitting import DAMPING, FittedChannelInWindow, compensated, fit, rounded
from wq_kernels import unpack


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flat(x: torch.Tensor) -> torch.Tensor:
    """Weights of ones for [B, H, L, D]."""
    return torch.ones(x.shape[:3])


@pytest.mark.parametrize("bits", [2, 4])
def test_fit_is_a_least_squares_pair_for_its_codes(bits: int) -> None:
    x, weights = draw(1, 1, 1, 32, 8), draw(1, 1, 1, 32, 1, seed=1).abs() + 0.1
    scale, minimum = fit(x, weights, bits)
    codes = rounded(x, scale, minimum, bits)
    for channel in range(8):
        c, y, w = (t[0, 0, 0, :, min(channel, t.shape[-1] - 1)].double().numpy() for t in (codes, x, weights))
        slope, offset = np.polyfit(c, y, 1, w=np.sqrt(w))  # numpy's weights multiply the residuals
        best = (w * (y - slope * c - offset) ** 2).sum()
        ours = (w * (y - float(scale[..., channel]) * c - float(minimum[..., channel])) ** 2).sum()
        assert ours <= best * 1.02


def test_fit_finds_the_best_of_all_codes_of_a_small_group() -> None:
    x = draw(1, 1, 1, 5, 6, seed=3)
    ones = torch.ones(1, 1, 1, 5, 1)
    scale, minimum = fit(x, ones, 2)
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


@pytest.mark.parametrize("bits", [2, 4])
def test_fit_beats_rounding_between_minimum_and_maximum(bits: int) -> None:
    x = draw(2, 2, 128, 16)
    index = torch.arange(128).expand(2, -1)
    plain = unpack(ChannelInWindow(64).encode(x, index, bits), torch.float32)
    fitted = unpack(FittedChannelInWindow(64, flat(x)).encode(x, index, bits), torch.float32)
    assert (fitted - x).square().mean() < {2: 0.7, 4: 0.99}[bits] * (plain - x).square().mean()
    bias, before = ((y - x).unflatten(2, (2, 64)).mean(dim=3).square().mean() for y in (fitted, plain))
    assert bias < 0.3 * before


def test_same_bytes_as_without_a_fit() -> None:
    x, index = draw(1, 2, 96, 16), torch.arange(96)[None]
    for bits in (2, 4, 8, 16):
        plain = ChannelInWindow(32).encode(x, index, bits)
        assert FittedChannelInWindow(32, flat(x)).encode(x, index, bits).nbytes == plain.nbytes


def test_tokens_that_count_more_are_nearer() -> None:
    x, weights = draw(1, 1, 64, 32), torch.full((1, 1, 64), 0.01)
    weights[..., :8] = 1.0
    index = torch.arange(64)[None]
    seen, unseen = (
        (unpack(FittedChannelInWindow(64, w).encode(x, index, 2), torch.float32) - x)[:, :, :8].square().mean()
        for w in (weights, flat(x))
    )
    assert seen < 0.6 * unseen


def test_tokens_are_stored_in_the_order_of_the_index() -> None:
    x, index = draw(1, 1, 64, 16), torch.randperm(64, generator=torch.Generator().manual_seed(2))[None]
    weights = draw(1, 1, 64, seed=4).abs()
    there = FittedChannelInWindow(32, weights).encode(x, index, 4)
    here = FittedChannelInWindow(32, weights[:, :, index[0]]).encode(x[:, :, index[0]], torch.arange(64)[None], 4)
    assert torch.equal(there.data, here.data)


def test_constant_groups_come_back_exactly() -> None:
    x = torch.full((1, 1, 32, 16), 3.5)
    block = FittedChannelInWindow(32, torch.zeros(1, 1, 32)).encode(x, torch.arange(32)[None], 2)
    assert torch.equal(unpack(block, torch.float32), x)


def test_compensation_is_gptq_in_float64() -> None:
    """The blocked form against the textbook's, one channel and one token at a time."""
    channels, bits = 40, 2
    x = draw(1, 1, 2, 4, channels)
    queries = draw(200, channels, seed=5) @ draw(channels, channels, seed=6)
    metric = (queries.T @ queries / 200)[None, None]
    scale, minimum = fit(x, torch.ones(1, 1, 2, 4, 1), bits)
    codes = compensated(x, scale, minimum, bits, metric)[0, 0].numpy()
    h = metric[0, 0].double().numpy()
    order = np.argsort(-(np.diag(h) * (scale**2).mean(dim=(2, 3))[0, 0].double().numpy()), kind="stable")
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


def test_compensation_keeps_scores() -> None:
    x, index = draw(1, 1, 128, 32), torch.arange(128)[None]
    queries = draw(64, 32, seed=7) * torch.logspace(0, -2, 32)  # some directions matter more
    queries = queries @ torch.linalg.qr(draw(32, 32, seed=8))[0]
    metric = (queries.T @ queries / 64)[None, None]
    plain, aware = (
        ((unpack(FittedChannelInWindow(64, flat(x), m).encode(x, index, 2), torch.float32) - x)[0, 0] @ queries.T)
        for m in (None, metric)
    )
    assert aware.square().mean() < 0.3 * plain.square().mean()
