"""Coordinates that a layer is kept in so that it quantizes better, with attention unchanged.

Keys become k A and queries q A^-T, so that every score q k^T is what it was; values become v C and the weighted sums
that attention gives are turned back by C^-1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


class Transform(ABC):
    """A linear change of coordinates of a layer's heads; tensors are [B, H, T, D] and keep their dtype."""

    @abstractmethod
    def keys(self, x: torch.Tensor) -> torch.Tensor:
        """Keys as they are kept."""

    @abstractmethod
    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Values as they are kept."""

    @abstractmethod
    def queries(self, x: torch.Tensor) -> torch.Tensor:
        """Queries, [B, G * Hkv, T, D], for keys as they are kept."""

    @abstractmethod
    def own_keys(self, x: torch.Tensor) -> torch.Tensor:
        """Kept keys in the model's own coordinates."""

    @abstractmethod
    def own_values(self, x: torch.Tensor) -> torch.Tensor:
        """Kept values, or sums of them for each query head, in the model's own coordinates."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that are kept for this layer alone."""


def hadamard(size: int) -> torch.Tensor:
    """Orthonormal Walsh-Hadamard matrix, float64 [size, size]; blocks of it where the size is no power of two.

    Sylvester's construction. For size = m * 2^n, m odd, it is m blocks of 2^n along the diagonal.
    """
    power = size & -size
    block = torch.ones(1, 1, dtype=torch.float64)
    while len(block) < power:
        block = torch.cat([torch.cat([block, block], dim=1), torch.cat([block, -block], dim=1)])
    return torch.block_diag(*[block / power**0.5] * (size // power))


@dataclass(frozen=True)
class Rotation(Transform):
    """Keys, values and queries of every head times one orthonormal matrix.

    Attributes:
        matrix: [D, D].
    """

    matrix: torch.Tensor

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.matrix.to(x)

    values = queries = keys

    def own_keys(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.matrix.to(x).T

    own_values = own_keys

    @property
    def nbytes(self) -> int:
        return 0  # a constant of the method


@dataclass(frozen=True)
class Smoothing(Transform):
    """Every channel of keys and values divided by a factor of its own.

    Attributes:
        key_scale, value_scale: The factors, positive, [Hkv, D].
    """

    key_scale: torch.Tensor
    value_scale: torch.Tensor

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return (x / _of_heads(self.key_scale, x)).to(x.dtype)

    def values(self, x: torch.Tensor) -> torch.Tensor:
        return (x / _of_heads(self.value_scale, x)).to(x.dtype)

    def queries(self, x: torch.Tensor) -> torch.Tensor:
        return (x * _of_heads(self.key_scale, x)).to(x.dtype)

    own_keys = queries

    def own_values(self, x: torch.Tensor) -> torch.Tensor:
        return (x * _of_heads(self.value_scale, x)).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self.key_scale.nbytes + self.value_scale.nbytes


def _of_heads(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Factors [Hkv, D] for [B, G * Hkv, T, D]: the heads of one KV head are next to each other."""
    return scale.repeat_interleave(x.shape[1] // len(scale), dim=0)[:, None]
