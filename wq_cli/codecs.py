"""How numbers are stored at a width, and what that costs to the bit.

A codec stores one side (keys or values) of some tokens; a layer has one for each and perhaps a transform before them
(`wq_cli.transforms`). The bits themselves are laid out in `wq_kernels`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wq_cli.errors import UsageError
from wq_cli.policies.base import FULL_PRECISION

if TYPE_CHECKING:
    import torch

    from wq_cli.blocks import TokenQuantizer, TorchBlock
    from wq_cli.transforms import Transform
    from wq_kernels import Block

# Scales and minima are float16 whatever the model's dtype.
METADATA_BITS = 2 * 16


class Coding(ABC):
    """How the layers of a cache are stored."""

    @abstractmethod
    def of_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerCodec:
        """How one layer is stored.

        Args:
            layer: Its index.
            keys, values: What it holds, [B, Hkv, L, D], rotary position applied.
        """


@dataclass(frozen=True)
class LayerCodec(Coding):
    """How keys and values of a layer are stored.

    Attributes:
        keys, values: Their codecs.
        transform: What the whole layer is kept in the coordinates of; None for the model's own.
    """

    keys: Codec
    values: Codec
    transform: Transform | None = None

    def of_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerCodec:
        return self


class Codec(Coding):
    """How one side is stored. As a coding it stands for itself on both sides."""

    @abstractmethod
    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block | TorchBlock:
        """Gather, quantize and pack one side of a segment.

        Args:
            x: Keys or values of a layer, [B, Hkv, L, D].
            index: Source token of each stored token, windows in storage order, int64 [B, W * S].
            bits: Width; 16 stores the tokens as they are.
        """

    def of_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerCodec:
        return LayerCodec(self, self)


@dataclass(frozen=True)
class ChannelInWindow(Codec):
    """Asymmetric round-to-nearest per channel inside a window: WindowQuant's groups, KIVI's for keys (eqs 14-16).

    Attributes:
        window: S, tokens per group.
        zero_point: `float` stores the minimum; `integer` follows eqs 14-16 to the letter.
    """

    window: int
    zero_point: Literal["float", "integer"] = "float"

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block:
        from wq_kernels import pack

        return pack(x, index, bits=bits, window=self.window, zero_point=self.zero_point)

    def window_bits(self, bits: int, full_bits: int) -> int:
        """Bits that one window takes per channel and KV head, metadata included.

        Args:
            bits: Width of the codes; 16 means full precision.
            full_bits: Bits of the model's dtype.
        """
        if bits == FULL_PRECISION:
            return self.window * full_bits
        return self.window * bits + METADATA_BITS


@dataclass(frozen=True)
class PerToken(Codec):
    """Asymmetric round-to-nearest per token, over groups of its channels.

    Attributes:
        window: Tokens that a segment counts by where they stay as they are; 1 where some of a window may be missing.
        quantizer: The groups, and how they are rounded.
        levels: Of a code, where they are no power of two; None follows the plan's bits.
    """

    window: int
    quantizer: TokenQuantizer
    levels: int | None = None

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block | TorchBlock:
        """See `Codec.encode`.

        Raises:
            UsageError: The heads are no whole number of groups.
        """
        from wq_cli.blocks import gather
        from wq_kernels import pack

        if bits == FULL_PRECISION:
            return pack(x, index, bits=bits, window=self.window)
        try:
            return self.quantizer.pack(gather(x, index), self.levels or 2**bits)
        except ValueError as error:
            raise UsageError(str(error), "give the policy another `group`") from error


@dataclass(frozen=True)
class PerWindow(Codec):
    """Asymmetric round-to-nearest over all heads, channels and tokens of a window.

    Attributes:
        window: S, tokens per group.
    """

    window: int

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block | TorchBlock:
        from wq_cli.blocks import WindowBlock, gather
        from wq_kernels import pack

        if bits == FULL_PRECISION:
            return pack(x, index, bits=bits, window=self.window)
        return WindowBlock.of_range(gather(x, index), 2**bits, self.window)
