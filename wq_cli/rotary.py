"""Keys before their rotary position: for methods that quantize them there and rotate them when they are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from transformers.models.llama.modeling_llama import rotate_half

from wq_cli.blocks import TorchBlock
from wq_cli.codecs import Codec, PerToken
from wq_cli.policies.base import FULL_PRECISION

if TYPE_CHECKING:
    from wq_kernels import Block


@dataclass(frozen=True)
class Rotary:
    """The rotary embedding of a decoder at the positions of prompts.

    Attributes:
        decoder: Its `rotary_emb` gives cosines and sines, those of pairs of channels half a head apart.
        positions: int64 [B, L], or [3, B, L] for time, height and width.
    """

    decoder: Any
    positions: torch.Tensor

    def _angles(self, x: torch.Tensor, index: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(cosines, sines) float32 [B, 1, T, D] for tokens x, [B, H, T, D], at places int64 [B, T] of the prompt."""
        positions = self.positions.to(x.device)
        positions = positions.repeat_interleave(x.shape[0] // positions.shape[-2], dim=-2)
        if index is not None:
            positions = positions.gather(-1, index.expand(*positions.shape[:-1], -1))
        cos, sin = self.decoder.rotary_emb(x.float(), positions)
        return cos[:, None].float(), sin[:, None].float()

    def apply(self, x: torch.Tensor, index: torch.Tensor | None = None) -> torch.Tensor:
        """Rotate keys, float32 [B, Hkv, T, D], that stand at some places of the prompt; at the first T for None."""
        cos, sin = self._angles(x, index)
        return x * cos + rotate_half(x) * sin

    def undo(self, x: torch.Tensor) -> torch.Tensor:
        """Keys of the first T tokens, [B, Hkv, T, D], as they were before, float32. Scaled embeddings are unscaled."""
        x = x.float()
        cos, sin = self._angles(x, None)
        return (x * cos - rotate_half(x) * sin) / (cos**2 + sin**2)


@dataclass(frozen=True)
class UnrotatedBlock(TorchBlock):
    """Keys stored before their rotary position.

    Attributes:
        inner: They.
        rotary: Puts the position back when they are read; a constant of the prompt.
        index: Place of each stored token in the prompt, int64 [B, T], which the cache keeps for all layers.
    """

    inner: TorchBlock
    rotary: Rotary
    index: torch.Tensor

    @property
    def channels(self) -> int:  # type: ignore[override]
        return self.inner.channels

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self.inner.data

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    @property
    def metadata_nbytes(self) -> int:
        return self.inner.metadata_nbytes

    def rows(self, index: torch.Tensor) -> Self:
        return replace(self, inner=self.inner.rows(index), index=self.index.index_select(0, index))

    def read(self, dtype: torch.dtype) -> torch.Tensor:
        return self.rotary.apply(self.inner.read(torch.float32), self.index).to(dtype)


@dataclass(frozen=True)
class BeforeRotary(Codec):
    """Keys quantized per token before their rotary position."""

    inner: PerToken
    rotary: Rotary

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block | TorchBlock:
        if bits == FULL_PRECISION:  # windows in the order of time; nothing is rounded, so nothing is undone
            return self.inner.encode(x, index, bits)
        block = self.inner.encode(self.rotary.undo(x), index, bits)
        assert isinstance(block, TorchBlock)
        return UnrotatedBlock(block, self.rotary, index)
