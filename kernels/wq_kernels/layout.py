"""The stored format of a quantized KV cache: what every bit means, and nothing about how it is made or read.

A block is one side (keys or values) of a run of windows that share a width. A packed block keeps integer codes in
int32 words along the tokens of a window: with P = 32 / bits codes in a word, token j of a window sits in word j // P of
that window at bits [(j % P) * bits, (j % P + 1) * bits). Windows start on a word boundary; slots past the last token
are 0. One scale and one minimum per window, KV head and channel turn codes back: x = scale * code + minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

WORD_BITS = 32
PACKED_BITS = (2, 4, 8)
RAW_BITS = 16


def codes_per_word(bits: int) -> int:
    """Number of codes of `bits` bits in one int32 word (P)."""
    return WORD_BITS // bits


def words_per_window(window: int, bits: int) -> int:
    """Number of int32 words that the `window` tokens of one channel take (R)."""
    return -(-window // codes_per_word(bits))


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
        windows: W, number of windows; may be 0.
        data: Packed: int32 words [B, Hkv, W * R, D] with R = `words_per_window(S, bits)`. Raw: values
            [B, Hkv, W * S, D]. Contiguous.
        scale: [B, Hkv, W, D] in the dtype of the source, contiguous; None when raw.
        minimum: As `scale`.

    Raises:
        ValueError: The tensors do not have these shapes.
    """

    bits: int
    window: int
    windows: int
    data: Tensor
    scale: Tensor | None = None
    minimum: Tensor | None = None

    def __post_init__(self) -> None:
        check_bits(self.bits)
        rows = self.windows * (self.window if self.is_raw else words_per_window(self.window, self.bits))
        batch, heads, _, channels = self.data.shape
        parts: list[tuple[str, Tensor | None, int]] = [("data", self.data, rows)]
        if not self.is_raw:
            parts += [("scale", self.scale, self.windows), ("minimum", self.minimum, self.windows)]
        for name, tensor, count in parts:
            shape = (batch, heads, count, channels)
            if tensor is None or tuple(tensor.shape) != shape or not tensor.is_contiguous():
                found = "None" if tensor is None else f"{tuple(tensor.shape)} with strides {tensor.stride()}"
                raise ValueError(f"{name} of a {self.bits}-bit block must be contiguous {shape}, not {found}")

    @property
    def is_raw(self) -> bool:
        """Whether the block holds plain values instead of codes."""
        return self.bits == RAW_BITS

    @property
    def tokens(self) -> int:
        """Stored tokens, W * S."""
        return self.windows * self.window

    @property
    def metadata_nbytes(self) -> int:
        """Bytes of scales and minima."""
        return _bytes(self.scale) + _bytes(self.minimum)

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor of the block."""
        return _bytes(self.data) + self.metadata_nbytes


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
            ("head size", self.key.data.shape[3], self.value.data.shape[3]),
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
