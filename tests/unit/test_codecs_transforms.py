"""Coordinates of a layer: attention through them is the model's own."""

from __future__ import annotations

import pytest
import torch

from wq_cli.policies.smoothquant import smooth
from wq_cli.transforms import Rotation, Smoothing, Transform, hadamard

F64 = torch.float64


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize("size", [1, 2, 64, 96, 128])
def test_hadamard_is_orthonormal_with_entries_of_one_size(size: int) -> None:
    matrix = hadamard(size)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=F64))
    block = size & -size
    assert set(matrix[matrix != 0].abs().mul(block**0.5).round(decimals=9).tolist()) == {1.0}
    assert (matrix != 0).sum(dim=1).eq(block).all()


def test_hadamard_of_four_by_hand() -> None:
    signs = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    torch.testing.assert_close(hadamard(4), torch.tensor(signs, dtype=F64) / 2)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v


KEYS, VALUES, QUERIES = normal(2, 2, 9, 16, seed=1), normal(2, 2, 9, 16, seed=2), normal(2, 6, 3, 16, seed=3)
TRANSFORMS = (
    Rotation(hadamard(16)),
    Smoothing(
        smooth(KEYS.abs().amax(dim=(0, 2)), QUERIES.abs().amax(dim=(0, 2))[::3], 0.5).double(),
        smooth(VALUES.abs().amax(dim=(0, 2)), torch.ones(2, 16), 1.0).double(),
    ),
)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=["rotation", "smoothing"])
def test_attention_does_not_notice(transform: Transform) -> None:
    made = attention(transform.queries(QUERIES), transform.keys(KEYS), transform.values(VALUES))
    torch.testing.assert_close(transform.own_values(made), attention(QUERIES, KEYS, VALUES))
    torch.testing.assert_close(transform.own_keys(transform.keys(KEYS)), KEYS)
    torch.testing.assert_close(transform.own_values(transform.values(VALUES)), VALUES)


def test_smoothing_by_equation_4() -> None:
    own, other = torch.tensor([[9.0, 0.0]]), torch.tensor([[4.0, 4.0]])
    # 9^0.5 / 4^0.5; an empty channel keeps a factor that can be divided by.
    torch.testing.assert_close(smooth(own, other, 0.5), torch.tensor([[1.5, 1e-5]]))
    torch.testing.assert_close(smooth(own, other, 1.0), torch.tensor([[9.0, 1e-5]]))
