"""Channel tiers against what the equations say, channel by channel, and against the bytes that exist."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wq_cli.errors import UsageError
from wq_cli.policies.mixkvq import ChannelTiers, MixKvqOptions, TierBlock


def drawn(channels: int = 16, tokens: int = 64) -> torch.Tensor:
    x = torch.randn(1, 2, tokens, channels, generator=torch.Generator().manual_seed(0))
    return x * torch.linspace(0.1, 3, channels)  # later channels have wider ranges


def encode(x: torch.Tensor, importance: torch.Tensor, tau_16: float, tau_4: float, windows: int = 2) -> TierBlock:
    block = ChannelTiers(8, importance, windows, tau_16, tau_4).encode(x, torch.arange(x.shape[2])[None], 2)
    assert isinstance(block, TierBlock)
    return block


def test_tiers_by_hand() -> None:
    x, importance = drawn(), torch.rand(1, 2, 16, generator=torch.Generator().manual_seed(1))
    block = encode(x, importance, 0.9, 0.4)
    y = x.double().numpy()
    # A of every 16 tokens, from the equations.
    a = np.stack([np.ptp(y[:, :, i : i + 16], axis=2) / 3 for i in range(0, 64, 16)], axis=2)
    a *= importance[:, :, None].double().numpy()
    sixteen = round((a > 0.9).sum(axis=-1).mean())
    four = round((a > 0.4).sum(axis=-1).mean()) - sixteen
    assert sixteen > 0 and 0 < four < 16 - sixteen
    read = block.read(torch.float32).double().numpy()
    for head in range(2):
        for part in range(4):
            ranked = np.argsort(-a[0, head, part], kind="stable")
            for place, channel in enumerate(ranked):
                for window in range(2):
                    at = slice(16 * part + 8 * window, 16 * part + 8 * window + 8)
                    values, found = y[0, head, at, channel], read[0, head, at, channel]
                    if place < sixteen:
                        expected = values
                    else:
                        top = 15 if place < sixteen + four else 3
                        low, step = np.float16(values.min()), np.float16(np.ptp(values) / top)
                        codes = np.clip(np.round((values - float(low)) / float(step)), 0, top)
                        expected = codes * float(step) + float(low)
                    np.testing.assert_allclose(found, expected, atol=2e-3 * max(1, np.abs(values).max()))


def test_bytes_of_the_tiers() -> None:
    x = drawn()
    block = encode(x, torch.ones(1, 2, 16), 0.9, 0.4)
    sixteen, four = block.raw.shape[-1], block.four
    two = 16 - sixteen - four
    per_head = 64 * (4 * sixteen + -(-four // 2) + -(-two // 4)) + 8 * 2 * 2 * (four + two) + 4 * 16
    assert block.nbytes == 2 * per_head


@pytest.mark.parametrize(("tau_16", "tau_4", "raw", "four"), [(0, 0, 16, 0), (1e9, 1e9, 0, 0), (1e9, 0, 0, 16)])
def test_one_tier_for_all(tau_16: float, tau_4: float, raw: int, four: int) -> None:
    x = drawn()
    block = encode(x, torch.ones(1, 2, 16), tau_16, tau_4)
    assert (block.raw.shape[-1], block.four) == (raw, four)
    error = (block.read(torch.float32) - x).square().mean().sqrt() / x.square().mean().sqrt()
    assert (error == 0) if raw else (error < (0.1 if four else 0.45))


def test_rows_are_read_as_they_were_stored() -> None:
    x = torch.cat([drawn(), 2 * drawn().flip(3)])
    block = ChannelTiers(8, torch.ones(2, 2, 16), 3, 0.9, 0.4).encode(x, torch.arange(64).expand(2, -1), 2)
    assert isinstance(block, TierBlock)  # 8 windows: the last stretch has two
    swapped = block.rows(torch.tensor([1, 0])).read(torch.float32)
    assert torch.equal(swapped, block.read(torch.float32).flip(0))


def test_a_channel_nobody_asks_for_is_rounded_first() -> None:
    x = torch.randn(1, 1, 32, 16, generator=torch.Generator().manual_seed(2))
    importance = torch.ones(1, 1, 16)
    importance[..., :8] = 0.0
    block = encode(x, importance, 0.5, 0.5, windows=4)
    error = (block.read(torch.float32) - x).abs().amax(dim=2)[0, 0]
    assert (error[8:] == 0).all() and (error[:8] > 0.05).all()


def test_thresholds_in_order() -> None:
    with pytest.raises(UsageError, match="tau-4"):
        MixKvqOptions(tau_16=0.5, tau_4=0.9)
