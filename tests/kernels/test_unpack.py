"""Unpacking against codes read one by one."""

from collections.abc import Callable

import pytest
import torch

from wq_kernels import Block, pack, unpack, use_backend

CASES = [(2, 32, 3, 64), (4, 32, 2, 80), (8, 32, 2, 128), (2, 20, 2, 64), (4, 1, 3, 16), (8, 7, 3, 40)]


def random_block(bits: int, window: int, windows: int, channels: int, dtype: torch.dtype) -> Block:
    x = (torch.randn(2, 3, 100, channels) * 5).to(dtype)
    with use_backend("torch"):
        return pack(x, torch.randint(0, 100, (2, windows * window)), bits=bits, window=window)


@pytest.mark.parametrize(("bits", "window", "windows", "channels"), CASES)
def test_pytorch_equals_codes(
    bits: int, window: int, windows: int, channels: int, dequantized: Callable[[Block], torch.Tensor]
) -> None:
    stored = random_block(bits, window, windows, channels, torch.float32)
    assert torch.equal(unpack(stored, torch.float64), dequantized(stored))
    torch.testing.assert_close(unpack(stored).double(), dequantized(stored), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize(("bits", "window", "windows", "channels"), CASES)
def test_kernel_equals_codes(
    bits: int,
    window: int,
    windows: int,
    channels: int,
    device: torch.device,
    dequantized: Callable[[Block], torch.Tensor],
) -> None:
    stored = random_block(bits, window, windows, channels, torch.float16)
    expected = dequantized(stored).half()
    moved = Block(
        stored.bits, stored.window, stored.windows, *(t.to(device) for t in (stored.data, stored.scale, stored.minimum))
    )
    # float32 before the rounding to float16: a value next to the middle of two halves may go either way.
    torch.testing.assert_close(unpack(moved).cpu(), expected, rtol=2**-10, atol=0)
    assert (unpack(moved).cpu() == expected).float().mean() > 0.999


def test_raw_blocks_are_converted() -> None:
    stored = random_block(16, 8, 3, 16, torch.float32)
    assert unpack(stored).data_ptr() == stored.data.data_ptr()
    assert torch.equal(unpack(stored, torch.bfloat16), stored.data.bfloat16())


def test_values_beyond_the_dtype_become_its_largest() -> None:
    stored = pack(torch.tensor([0.0, 1e6, -1e6]).view(1, 1, 3, 1), torch.arange(3).unsqueeze(0), bits=8, window=3)
    assert unpack(stored, torch.float16).flatten()[1:].tolist() == [65504.0, -65504.0]
