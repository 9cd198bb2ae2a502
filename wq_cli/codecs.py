"""How numbers are stored at a width, and what that costs to the bit.

One codec so far: WindowQuant's groups, one (scale, minimum) pair per channel and KV head inside each window, for keys
and values alike (eqs 14-16). The bits themselves are laid out in `wq_kernels.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wq_cli.policies.base import FULL_PRECISION

if TYPE_CHECKING:
    import torch

    from wq_kernels import Block

# Scales and minima are float16 whatever the model's dtype.
METADATA_BITS = 2 * 16


@dataclass(frozen=True)
class ChannelInWindow:
    """Asymmetric round-to-nearest per channel inside a window.

    Attributes:
        window: S, tokens per group.
        zero_point: `float` stores the minimum; `integer` follows eqs 14-16 to the letter.
    """

    window: int
    zero_point: Literal["float", "integer"] = "float"

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block:
        """Gather, quantize and pack one side of a segment.

        Args:
            x: Keys or values of a layer, [B, Hkv, L, D].
            index: Source token of each stored token, windows in storage order, int64 [B, W * S].
            bits: Width; 16 stores the tokens as they are.
        """
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
