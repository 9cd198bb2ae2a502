"""Blocks and segments: sizes, and what they refuse."""

import pytest
import torch

from wq_kernels import Block, Segment, pack
from wq_kernels.layout import words_per_token


def block(bits: int = 4, window: int = 32, windows: int = 3, channels: int = 64) -> Block:
    return pack(
        torch.randn(2, 4, 100, channels), torch.zeros(2, windows * window, dtype=torch.int64), bits=bits, window=window
    )


@pytest.mark.parametrize(
    ("channels", "bits", "words"),
    [(128, 2, 16), (128, 4, 32), (128, 8, 64), (64, 2, 8), (80, 2, 10), (96, 4, 24), (16, 2, 2)],
)
def test_words_per_token(channels: int, bits: int, words: int) -> None:
    assert words_per_token(channels, bits) == words


@pytest.mark.parametrize(("channels", "bits"), [(40, 2), (4, 4), (1, 8)])
def test_words_come_in_pairs(channels: int, bits: int) -> None:
    with pytest.raises(ValueError, match=f"a head of {channels} channels cannot be packed at {bits} bits"):
        words_per_token(channels, bits)


@pytest.mark.parametrize(("bits", "bits_per_value"), [(2, 3), (4, 5), (8, 9), (16, 32)])
def test_bytes_of_float32_source(bits: int, bits_per_value: float) -> None:
    stored = block(bits)
    assert stored.tokens == 96
    assert stored.nbytes * 8 == bits_per_value * 2 * 4 * 96 * 64
    assert stored.metadata_nbytes == (0 if bits == 16 else 2 * 2 * 4 * 3 * 64 * 2)
    tensors = [t for t in (stored.data, stored.scale, stored.minimum) if t is not None]
    assert stored.nbytes == sum(t.untyped_storage().nbytes() for t in tensors)
    assert Segment(stored, stored).nbytes == 2 * stored.nbytes


def test_block_refuses_wrong_shapes() -> None:
    good = block()
    with pytest.raises(ValueError, match="not 3"):
        Block(3, 32, 64, good.data, good.scale, good.minimum)
    with pytest.raises(ValueError, match="data of a 2-bit block"):
        Block(2, 32, 64, good.data, good.scale, good.minimum)
    with pytest.raises(ValueError, match="96 tokens are no whole number of windows of 36"):
        Block(4, 36, 64, good.data, good.scale, good.minimum)
    with pytest.raises(ValueError, match=r"scale of a 4-bit block must be contiguous .* not None"):
        Block(4, 32, 64, good.data)
    with pytest.raises(ValueError, match=r"minimum .* strides"):
        Block(4, 32, 64, good.data, good.scale, good.minimum.mT.contiguous().mT)


def test_segment_refuses_different_tokens() -> None:
    with pytest.raises(ValueError, match="agree in windows: 3 and 2"):
        Segment(block(), block(windows=2))
    with pytest.raises(ValueError, match="agree in window: 32 and 48"):
        Segment(block(), block(window=48, windows=2))
    with pytest.raises(ValueError, match="head size"):
        Segment(block(), block(channels=32))
