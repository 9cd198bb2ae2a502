"""Stored formats that no kernel knows: PyTorch reads them back, layer by layer, before attention runs over them.

They are those of methods whose groups lie along the channels of a token, or whose codes are no whole number of bits.
`wq_kernels.layout` has the format that attention reads as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal, Self

import torch
from torch import Tensor

from wq_kernels import Block, Segment, unpack

# Tokens that share one mean when a block is centred.
CENTRE_TOKENS = 32


class TorchBlock(ABC):
    """Keys or values of some tokens.

    Attributes:
        channels: D, size of a head.
        data: Codes, [B, Hkv, T, ...].
    """

    channels: int
    data: Tensor

    @abstractmethod
    def read(self, dtype: torch.dtype) -> Tensor:
        """The values, [B, Hkv, T, D]."""

    @property
    def tokens(self) -> int:
        """T, stored tokens."""
        return self.data.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor of the block."""
        held = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        return sum(value.nbytes for value in held if isinstance(value, Tensor))

    @property
    def metadata_nbytes(self) -> int:
        """Bytes of everything but the codes."""
        return self.nbytes - self.data.nbytes

    def rows(self, index: Tensor) -> Self:
        """Some rows of the batch, in the order given, int64 [n]."""
        tensors = {name: getattr(self, name, None) for name in ("data", "scale", "minimum", "centre")}
        return replace(self, **{k: x.index_select(0, index) for k, x in tensors.items() if x is not None})  # type: ignore[type-var]


@dataclass(frozen=True)
class TorchSegment:
    """Keys and values of the same tokens, one of them or both in such a format."""

    key: Block | TorchBlock
    value: Block | TorchBlock

    @property
    def tokens(self) -> int:
        """Stored tokens."""
        return self.key.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor of both blocks."""
        return self.key.nbytes + self.value.nbytes


def segment(key: Block | TorchBlock, value: Block | TorchBlock) -> Segment | TorchSegment:
    """Keys and values of the same tokens, as a kernel's segment where a kernel can read both."""
    if isinstance(key, Block) and isinstance(value, Block):
        return Segment(key, value)
    return TorchSegment(key, value)


def read(block: Block | TorchBlock, dtype: torch.dtype) -> Tensor:
    """The values of a block, [B, Hkv, T, D]."""
    return unpack(block, dtype) if isinstance(block, Block) else block.read(dtype)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Tokens [B, Hkv, n, D] of keys or values [B, Hkv, L, D] by their places, int64 [B, n]."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


@lru_cache
def digits_per_byte(levels: int) -> int:
    """Codes with so many levels that fit one byte: 8, 5, 4, 2, 1 for 2, 3, 4, 16, 256."""
    count = 0
    while levels ** (count + 1) <= 256:
        count += 1
    return count


def pack_digits(codes: Tensor, levels: int) -> Tensor:
    """Codes 0 to levels - 1 as digits of bytes: uint8 [..., n] to [..., C], digit p of byte m is code p * C + m."""
    digits = digits_per_byte(levels)
    size = -(-codes.shape[-1] // digits)
    padded = torch.nn.functional.pad(codes, (0, size * digits - codes.shape[-1])).unflatten(-1, (digits, size))
    packed = padded[..., 0, :].clone()
    for p in range(1, digits):
        packed += padded[..., p, :] * levels**p
    return packed


def unpack_digits(data: Tensor, levels: int, count: int) -> Tensor:
    """The inverse: uint8 [..., C] to [..., count]."""
    if levels == 256:  # which a byte cannot be divided by
        return data
    planes = [data // levels**p % levels for p in range(digits_per_byte(levels))]
    return torch.cat(planes, dim=-1)[..., :count]


@dataclass(frozen=True)
class TokenBlock(TorchBlock):
    """Every token has a scale and a minimum for each group of channels: x = scale * code + minimum + centre.

    Attributes:
        levels: Of a code, 2 to 256.
        data: `pack_digits` of the channels of each token, uint8 [B, Hkv, T, C].
        scale, minimum: [B, T, G], groups of all heads.
        groups: Group of each channel, uint8 [Hkv, D]; None for Hkv * D / G channels next to each other.
        centre: Mean of every 32 stored tokens, float16 [B, Hkv, ceil(T / 32), D]; None for none.
    """

    levels: int
    channels: int
    data: Tensor
    scale: Tensor
    minimum: Tensor
    groups: Tensor | None = None
    centre: Tensor | None = None

    def read(self, dtype: torch.dtype) -> Tensor:
        compute = torch.promote_types(dtype, torch.float32)
        x = unpack_digits(self.data, self.levels, self.channels).to(compute)
        x *= self._of_channels(self.scale.to(compute))
        x += self._of_channels(self.minimum.to(compute))
        if self.centre is not None:
            x += _of_tokens(self.centre, self.tokens)
        return x.to(dtype)

    def _of_channels(self, pairs: Tensor) -> Tensor:
        """[B, T, G] to [B, Hkv, T, D]."""
        heads = self.data.shape[1]
        return _spread(pairs, heads * self.channels, self.groups).unflatten(-1, (heads, -1)).transpose(1, 2)


def _spread(pairs: Tensor, channels: int, groups: Tensor | None) -> Tensor:
    """What groups have, for each of their channels: [B, T, G] to [B, T, channels]."""
    if groups is None:
        return pairs.repeat_interleave(channels // pairs.shape[-1], dim=-1)
    return pairs[..., groups.flatten().long()]


def _of_tokens(centre: Tensor, tokens: int) -> Tensor:
    return centre.repeat_interleave(CENTRE_TOKENS, dim=2)[:, :, :tokens]


@dataclass(frozen=True)
class TokenQuantizer:
    """Asymmetric round-to-nearest per token and group of channels.

    Attributes:
        group: Channels next to each other that share a pair, in the order of heads; it divides Hkv * D. 0 is a head.
        groups: Group of each channel instead, uint8 [Hkv, D].
        clip: What the ranges of groups are multiplied with, one number or float32 [G].
        clip_about: The point that clipping leaves: `zero`, so that lo = clip * min and hi = clip * max, or the
            `middle` of the range.
        zero_point: `integer` makes the minimum a multiple of the scale.
        dtype: Of scale and minimum; codes are computed from the rounded pair.
        centred: Whether the mean of every 32 stored tokens is taken away first.
    """

    group: int = 0
    groups: Tensor | None = None
    clip: float | Tensor = 1.0
    clip_about: Literal["zero", "middle"] = "zero"
    zero_point: Literal["float", "integer"] = "float"
    dtype: torch.dtype = torch.float16
    centred: bool = False

    def pack(self, x: Tensor, levels: int) -> TokenBlock:
        """Quantize tokens in the order given.

        Args:
            x: [B, Hkv, T, D].
            levels: Of a code, 2 to 256.

        Raises:
            ValueError: The channels are no whole number of groups.
        """
        batch, heads, tokens, channels = x.shape
        group = self.group or channels
        if self.groups is None and heads * channels % group:
            raise ValueError(f"{heads} heads of {channels} channels are no whole number of groups of {group}")
        x, centre = x.float(), None
        if self.centred:
            centre = _means(x).half()
            x = x - _of_tokens(centre.float(), tokens)
        rows = x.transpose(1, 2).reshape(batch, tokens, heads * channels)
        lo, hi = self._range(rows, group)
        scale = _rounded((hi - lo) / (levels - 1), self.dtype)
        step = torch.where(scale > 0, scale, 1.0)
        minimum = _rounded(scale * (lo / step).round() if self.zero_point == "integer" else lo, self.dtype)
        width = heads * channels
        codes = (rows - _spread(minimum, width, self.groups)) / _spread(step, width, self.groups)
        codes = codes.round_().clamp_(0, levels - 1).to(torch.uint8).unflatten(-1, (heads, channels)).transpose(1, 2)
        data = pack_digits(codes, levels)
        pair = scale.to(self.dtype), minimum.to(self.dtype)
        return TokenBlock(levels, channels, data, *pair, groups=self.groups, centre=centre)

    def _range(self, rows: Tensor, group: int) -> tuple[Tensor, Tensor]:
        """Clipped ends of every group, [B, T, G] each."""
        if self.groups is None:
            lo, hi = rows.unflatten(-1, (-1, group)).aminmax(dim=-1)
        else:
            index = self.groups.flatten().long().expand(rows.shape)
            empty = rows.new_zeros(*rows.shape[:2], int(self.groups.max()) + 1)
            lo, hi = (empty.scatter_reduce(2, index, rows, how, include_self=False) for how in ("amin", "amax"))
        if self.clip_about == "zero":
            return lo * self.clip, hi * self.clip
        middle, half = (lo + hi) / 2, (hi - lo) / 2 * self.clip
        return middle - half, middle + half


def _means(x: Tensor) -> Tensor:
    """Mean of every 32 tokens, the last ones maybe fewer: [B, H, T, D] to [B, H, ceil(T / 32), D]."""
    parts = x.split(CENTRE_TOKENS, dim=2)
    return torch.stack([part.mean(dim=2) for part in parts], dim=2) if x.shape[2] else x[:, :, :0]


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Float32 rounded to what a dtype can hold."""
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype).float()


@dataclass(frozen=True)
class ChannelBlock(TorchBlock):
    """Every channel has a scale for each window of tokens, at any number of levels.

    Attributes:
        levels: Of a code, 2 to 256.
        data: `pack_digits` of the channels of each token, uint8 [B, Hkv, W * S, C].
        scale: float16 [B, Hkv, W, D].
        minimum: As `scale`; None where levels lie evenly about 0: x = scale * (code - (levels - 1) / 2).
    """

    levels: int
    window: int
    channels: int
    data: Tensor
    scale: Tensor
    minimum: Tensor | None = None

    @classmethod
    def of_range(cls, x: Tensor, levels: int, window: int) -> ChannelBlock:
        """Asymmetric round-to-nearest between the ends of each group, [B, Hkv, W * S, D]."""
        grouped = x.float().unflatten(2, (-1, window))
        lo, hi = grouped.amin(dim=3), grouped.amax(dim=3)
        scale, lo = _rounded((hi - lo) / (levels - 1), torch.float16), _rounded(lo, torch.float16)
        codes = (grouped - lo.unsqueeze(3)) / torch.where(scale > 0, scale, 1.0).unsqueeze(3)
        data = pack_digits(codes.round_().clamp_(0, levels - 1).to(torch.uint8).flatten(2, 3), levels)
        return cls(levels, window, x.shape[3], data, scale.half(), lo.half())

    @classmethod
    def of_sign(cls, x: Tensor, levels: Literal[2, 3], window: int) -> ChannelBlock:
        """Signs times the mean magnitude m of each group; with three levels what is below m / 2 becomes 0."""
        grouped = x.float().unflatten(2, (-1, window))
        mean = _rounded(grouped.abs().mean(dim=3), torch.float16)
        if levels == 2:
            codes, scale = grouped > 0, 2 * mean
        else:
            codes, scale = 1 + grouped.sign() * (grouped.abs() > mean.unsqueeze(3) / 2), mean
        data = pack_digits(codes.to(torch.uint8).flatten(2, 3), levels)
        return cls(levels, window, x.shape[3], data, scale.half())

    def read(self, dtype: torch.dtype) -> Tensor:
        compute = torch.promote_types(dtype, torch.float32)
        x = unpack_digits(self.data, self.levels, self.channels).to(compute)
        if self.minimum is None:
            x -= (self.levels - 1) / 2
        x = x.unflatten(2, (-1, self.window)) * self.scale.unsqueeze(3)
        if self.minimum is not None:
            x += self.minimum.unsqueeze(3)
        return x.flatten(2, 3).to(dtype)


@dataclass(frozen=True)
class WindowBlock(TorchBlock):
    """All channels of all heads of a window's tokens share a scale and a minimum: x = scale * code + minimum.

    Attributes:
        levels: Of a code, 2 to 256.
        data: `pack_digits` of the channels of each token, uint8 [B, Hkv, W * S, C].
        scale, minimum: float16 [B, W].
    """

    levels: int
    window: int
    channels: int
    data: Tensor
    scale: Tensor
    minimum: Tensor

    @classmethod
    def of_range(cls, x: Tensor, levels: int, window: int) -> WindowBlock:
        """Asymmetric round-to-nearest between the ends of each window, [B, Hkv, W * S, D]."""
        grouped = x.float().unflatten(2, (-1, window))
        lo, hi = grouped.amin(dim=(1, 3, 4)), grouped.amax(dim=(1, 3, 4))
        scale, lo = _rounded((hi - lo) / (levels - 1), torch.float16), _rounded(lo, torch.float16)
        codes = (grouped - _of_windows(lo)) / _of_windows(torch.where(scale > 0, scale, 1.0))
        data = pack_digits(codes.round_().clamp_(0, levels - 1).to(torch.uint8).flatten(2, 3), levels)
        return cls(levels, window, x.shape[3], data, scale.half(), lo.half())

    def read(self, dtype: torch.dtype) -> Tensor:
        compute = torch.promote_types(dtype, torch.float32)
        x = unpack_digits(self.data, self.levels, self.channels).to(compute).unflatten(2, (-1, self.window))
        return (x * _of_windows(self.scale) + _of_windows(self.minimum)).flatten(2, 3).to(dtype)


def _of_windows(pairs: Tensor) -> Tensor:
    """[B, W] beside [B, Hkv, W, S, D]."""
    return pairs[:, None, :, None, None]


def spectrum(x: Tensor) -> Tensor:
    """Fourier transform along the last dimension as n real numbers: [..., n] to [..., n].

    Real parts from frequency 0 up, then the imaginary parts that are not 0 for every real signal.
    """
    n = x.shape[-1]
    if n == 0:
        return x
    complex_half = torch.fft.rfft(x, norm="ortho")
    return torch.cat([complex_half.real, complex_half.imag[..., 1 : (n + 1) // 2]], dim=-1)


def signal(x: Tensor) -> Tensor:
    """The inverse of `spectrum`."""
    n = x.shape[-1]
    if n == 0:
        return x
    real, imaginary = x.split([n // 2 + 1, (n - 1) // 2], dim=-1)
    imaginary = torch.nn.functional.pad(imaginary, (1, real.shape[-1] - imaginary.shape[-1] - 1))
    return torch.fft.irfft(torch.complex(real.contiguous(), imaginary), n=n, norm="ortho")


@dataclass(frozen=True)
class SpectrumBlock(TorchBlock):
    """Some channels as they are, the others by their spectrum.

    Attributes:
        wide: The first.
        rest: The spectrum of the others.
        wide_channels: Which are the first, ascending, int16 [n].
    """

    wide: ChannelBlock
    rest: ChannelBlock
    wide_channels: Tensor

    @property
    def channels(self) -> int:  # type: ignore[override]
        return self.wide.channels + self.rest.channels

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.rest.data

    @property
    def nbytes(self) -> int:
        return self.wide.nbytes + self.rest.nbytes + self.wide_channels.nbytes

    @property
    def metadata_nbytes(self) -> int:
        return self.wide.metadata_nbytes + self.rest.metadata_nbytes + self.wide_channels.nbytes

    def rows(self, index: Tensor) -> Self:
        return replace(self, wide=self.wide.rows(index), rest=self.rest.rows(index))

    def read(self, dtype: torch.dtype) -> Tensor:
        compute = torch.promote_types(dtype, torch.float32)
        rest = signal(self.rest.read(compute))
        is_wide = torch.zeros(self.channels, dtype=torch.bool, device=rest.device)
        is_wide[self.wide_channels.long()] = True
        x = rest.new_empty(*rest.shape[:-1], self.channels)
        x[..., is_wide], x[..., ~is_wide] = self.wide.read(compute), rest
        return x.to(dtype)
