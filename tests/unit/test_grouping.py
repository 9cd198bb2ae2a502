"""One pair for a whole window: codes and bytes against float64 arithmetic, and what it costs beside narrower groups."""

from __future__ import annotations

import pytest
import torch

from wq_cli.blocks import WindowBlock
from wq_cli.codecs import ChannelInWindow, PerWindow
from wq_cli.config import Quantization
from wq_cli.policies import create


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_window_is_rounded_between_its_own_ends(bits: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    x = torch.randn(2, 3, 12, 16, generator=generator) * torch.tensor([1.0, 10.0]).view(2, 1, 1, 1)
    x[0, :, 4:8] = 7.0  # a constant window is kept as it is
    stored = WindowBlock.of_range(x, 2**bits, 4)
    found = stored.read(torch.float64)
    assert torch.equal(found[0, :, 4:8], x[0, :, 4:8].double())
    for row in range(2):
        for window in range(3):
            part = x[row, :, 4 * window : 4 * window + 4].double()
            low, high = part.min(), part.max()
            step = (high - low) / (2**bits - 1)
            error = (found[row, :, 4 * window : 4 * window + 4] - part).abs().max()
            assert error <= step / 2 + 2**-10 * max(abs(low), abs(high))  # half a step, and ends kept in float16
    assert stored.nbytes == 2 * 3 * 12 * 16 * bits // 8 + 2 * 2 * 3 * 2


def test_bits_of_a_window_are_its_codes_and_one_pair() -> None:
    settings = Quantization(policy="rtn2:axes=tensor", window=32)
    policy = create(settings)
    assert isinstance(policy.coding(), PerWindow)
    x, index = torch.randn(1, 2, 64, 16), torch.arange(64).expand(1, -1)
    whole = PerWindow(32).encode(x, index, 2)
    channels = ChannelInWindow(32).encode(x, index, 2)
    assert (whole.metadata_nbytes, channels.metadata_nbytes) == (2 * 4, 2 * 2 * 16 * 4)
    full = PerWindow(32).encode(x, index, 16)
    assert full.nbytes == x.nbytes
