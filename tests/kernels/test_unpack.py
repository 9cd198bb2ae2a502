"""Unpacking against codes read one by one."""

from collections.abc import Callable

import pytest
import torch

from wq_kernels import Block, pack, unpack, use_backend

CASES = [(2, 32, 3, 64), (4, 32, 2, 80), (8, 32, 2, 128), (2, 20, 2, 96), (2, 5, 2, 128), (4, 1, 3, 16), (8, 7, 3, 32)]


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
    torch.testing.assert_close(unpack(stored, torch.float32).double(), dequantized(stored), rtol=1e-6, atol=1e-6)


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
    tensors = (t.to(device) for t in (stored.data, stored.scale, stored.minimum))
    moved = Block(stored.bits, stored.window, stored.channels, *tensors)
    # float32 before the rounding to float16: a value next to the middle of two halves may go either way.
    torch.testing.assert_close(unpack(moved, torch.float16).cpu(), expected, rtol=2**-10, atol=0)
    assert (unpack(moved, torch.float16).cpu() == expected).float().mean() > 0.999


def test_raw_blocks_are_converted() -> None:
    stored = random_block(16, 8, 3, 16, torch.float32)
    assert unpack(stored, torch.float32).data_ptr() == stored.data.data_ptr()
    assert torch.equal(unpack(stored, torch.bfloat16), stored.data.bfloat16())


def test_values_beyond_the_dtype_become_its_largest() -> None:
    # Scale 500: the top code stands for 60000 + 255 * 500.
    data = torch.full((1, 1, 1, 8), -1, dtype=torch.int16)
    scale, minimum = torch.full((2, 1, 1, 1, 16), 500.0, dtype=torch.float16)
    stored = Block(8, 1, 16, data, scale, minimum.fill_(60000.0))
    assert (unpack(stored, torch.float16) == 65504.0).all()
    stored.scale.neg_(), stored.minimum.neg_()
    assert (unpack(stored, torch.float16) == -65504.0).all()
