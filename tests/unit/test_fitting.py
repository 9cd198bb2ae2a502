"""Fitted codes and the errors they promise to keep small; tests/kernels/test_fit.py has the fit itself."""

from __future__ import annotations

import pytest
import torch

from wq_cli.codecs import ChannelInWindow
from wq_cli.fitting import FittedChannelInWindow, variance_in_windows
from wq_cli.placement import VisualTokens
from wq_kernels import Compensation, unpack


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flat(x: torch.Tensor) -> torch.Tensor:
    """Weights of ones for [B, H, L, D]."""
    return torch.ones(x.shape[:3])


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


def test_compensation_keeps_scores() -> None:
    x, index = draw(1, 1, 128, 32), torch.arange(128)[None]
    queries = draw(64, 32, seed=7) * torch.logspace(0, -2, 32)  # some directions matter more
    queries = queries @ torch.linalg.qr(draw(32, 32, seed=8))[0]
    compensation = Compensation.of((queries.T @ queries / 64)[None, None], torch.ones(1, 1, 32))
    plain, aware = (
        ((unpack(FittedChannelInWindow(64, flat(x), way).encode(x, index, 2), torch.float32) - x)[0, 0] @ queries.T)
        for way in (None, compensation)
    )
    assert aware.square().mean() < 0.3 * plain.square().mean()


def test_variance_is_that_of_visual_tokens_inside_windows() -> None:
    x = draw(2, 3, 40, 8) * torch.arange(1, 9) + torch.arange(40.0)[:, None]
    mask = torch.zeros(2, 40, dtype=torch.bool)
    mask[0, 3:25], mask[1, 9:31] = True, True  # two windows of 8 and a tail of 6
    expected = torch.stack([x[b, :, s : s + 16].double().unflatten(1, (2, 8)) for b, s in ((0, 3), (1, 9))])
    expected = ((expected - expected.mean(dim=3, keepdim=True)) ** 2).mean(dim=(2, 3))
    found = variance_in_windows(x, VisualTokens.from_mask(mask, window=8))
    assert torch.allclose(found.double(), expected, rtol=1e-5)


def test_a_video_of_no_window_has_no_variance_and_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    visual = VisualTokens.from_mask(torch.ones(2, 5, dtype=torch.bool), window=8)
    assert torch.equal(variance_in_windows(draw(2, 3, 5, 16), visual), torch.zeros(2, 3, 16))
    assert not recwarn.list
