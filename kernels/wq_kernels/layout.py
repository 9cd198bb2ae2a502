"""The stored format of a quantized KV cache: what every bit means, and nothing about how it is made or read.

A block is one side (keys or values) of a run of windows that share a width. A packed block keeps integer codes in
int16 words, token by token: the C = D * bits / 16 words of a token hold its D channels in order, P = 16 / bits codes in
a word. The code of plane p, at bits [p * bits, (p + 1) * bits) of word m, is that of channel m * P + p. One scale and
one minimum per window, KV head and channel turn codes back: x = scale * code + minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORD_BITS = 16
PACKED_BITS = (2, 4, 8)
RAW_BITS = 16
# Ten bits of mantissa: more than bfloat16 has, so that half models lose nothing; values beyond 65504 are clipped.
METADATA_DTYPE = torch.float16


def codes_per_word(bits: int) -> int:
    """Number of codes of `bits` bits in one int16 word (P)."""
    return WORD_BITS // bits


def words_per_token(channels: int, bits: int) -> int:
    """Number of int16 words that the channels of one token take (C).

    Raises:
        ValueError: The words would not come in pairs.
    """
    if channels * bits % (2 * WORD_BITS):
        raise ValueError(f"a head of {channels} channels cannot be packed at {bits} bits: no whole number of int32")
    return channels * bits // WORD_BITS


def check_bits(bits: int) -> None:
    """Raises ValueError unless `bits` is a width that a block can have."""
    if bits not in (*PACKED_BITS, RAW_BITS):
        raise ValueError(f"bits must be one of 2, 4, 8 (packed) or 16 (raw), not {bits}")


def _bytes(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


@dataclass(frozen=True)
class Block:
    """Keys or values of a run of windows at one width.

    Attributes:
        bits: 2, 4 or 8 for packed codes; 16 for raw values in the model's dtype, whatever its size.
        window: S, tokens per window (and per group of the quantizer).
        channels: D, size of a head.
        data: Packed: int16 words [B, Hkv, W * S, C] with C = `words_per_token(D, bits)`. Raw: values
            [B, Hkv, W * S, D]. Contiguous.
        scale: float16 [B, Hkv, W, D], contiguous; None when raw.
        minimum: As `scale`.

    Raises:
        ValueError: The tensors do not have these shapes.
    """

    bits: int
    window: int
    channels: int
    data: Tensor
    scale: Tensor | None = None
    minimum: Tensor | None = None

    def __post_init__(self) -> None:
        check_bits(self.bits)
        batch, heads, tokens, _ = self.data.shape
        if tokens % self.window:
            raise ValueError(f"{tokens} tokens are no whole number of windows of {self.window}")
        width = self.channels if self.is_raw else words_per_token(self.channels, self.bits)
        parts: list[tuple[str, Tensor | None, int, int]] = [("data", self.data, tokens, width)]
        if not self.is_raw:
            parts += [(name, getattr(self, name), self.windows, self.channels) for name in ("scale", "minimum")]
        for name, tensor, *inner in parts:
            shape = (batch, heads, *inner)
            if tensor is None or tuple(tensor.shape) != shape or not tensor.is_contiguous():
                found = "None" if tensor is None else f"{tuple(tensor.shape)} with strides {tensor.stride()}"
                raise ValueError(f"{name} of a {self.bits}-bit block must be contiguous {shape}, not {found}")

    @property
    def windows(self) -> int:
        """W, number of windows; may be 0."""
        return self.tokens // self.window

    @property
    def is_raw(self) -> bool:
        """Whether the block holds plain values instead of codes."""
        return self.bits == RAW_BITS

    @property
    def tokens(self) -> int:
        """Stored tokens, W * S."""
        return self.data.shape[2]

    @property
    def metadata_nbytes(self) -> int:
        """Bytes of scales and minima."""
        return _bytes(self.scale) + _bytes(self.minimum)

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor of the block."""
        return _bytes(self.data) + self.metadata_nbytes


def check_source(x: Tensor, index: Tensor, window: int) -> None:
    """Raises ValueError unless blocks can be made of x [B, Hkv, L, D] in the order of index [B, W * S]."""
    if window < 1:
        raise ValueError(f"window must be positive, not {window}")
    if x.dim() != 4 or not x.is_floating_point() or (x.shape[3] > 1 and x.stride(3) != 1):
        found = f"{x.dtype} {list(x.shape)} with strides {x.stride()}"
        raise ValueError(f"x must be floating point [B, Hkv, L, D] with unit stride along D, not {found}")
    if index.dtype != torch.int64 or index.dim() != 2 or index.shape[0] != x.shape[0] or index.shape[1] % window:
        expected = f"int64 [{x.shape[0]}, a multiple of {window}]"
        raise ValueError(f"index must be {expected}, not {index.dtype} {list(index.shape)}")


def unwritten(x: Tensor, tokens: int, bits: int, window: int) -> tuple[Block, Tensor, Tensor]:
    """A packed block of so many tokens of x [B, Hkv, L, D] that is yet to be written, its scale and its minimum."""
    batch, heads, _, channels = x.shape
    data = x.new_empty(batch, heads, tokens, words_per_token(channels, bits), dtype=torch.int16)
    scale, minimum = (x.new_empty(batch, heads, tokens // window, channels, dtype=METADATA_DTYPE) for _ in range(2))
    return Block(bits, window, channels, data, scale, minimum), scale, minimum


@dataclass(frozen=True)
class Segment:
    """Keys and values of the same tokens; widths may differ between the two.

    Raises:
        ValueError: Keys and values do not cover the same windows, heads and channels.
    """

    key: Block
    value: Block

    def __post_init__(self) -> None:
        for name, key, value in (
            ("window", self.key.window, self.value.window),
            ("windows", self.key.windows, self.value.windows),
            ("batch and heads", self.key.data.shape[:2], self.value.data.shape[:2]),
            ("head size", self.key.channels, self.value.channels),
        ):
            if key != value:
                raise ValueError(f"keys and values of a segment must agree in {name}: {key} and {value}")

    @property
    def tokens(self) -> int:
        """Stored tokens, W * S."""
        return self.key.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor of both blocks."""
        return self.key.nbytes + self.value.nbytes
