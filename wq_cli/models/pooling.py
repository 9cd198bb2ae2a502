"""Bilinear pooling of a frame's tokens to half its sides, as two small matrix products.

`torch.nn.functional.interpolate` wants channels before rows and columns, so that transformers copies all tokens twice,
and its CUDA kernel gives one thread a whole column of frames and channels.
"""

from __future__ import annotations

import functools

import torch


def halve(tokens: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """`interpolate(size=(ceil(height / 2), ceil(width / 2)), mode="bilinear")` over tokens.

    Bilinear weights are a product of a row's and a column's, so rows are mixed first, then columns.

    Args:
        tokens: Row by row, [F, height * width, D], contiguous.
        height, width: Sides of the grid.

    Returns:
        [F, ceil(height / 2) * ceil(width / 2), D]. In half precision the rounding of the weights and of the rows in
        between comes on top of that of the output.
    """
    frames, _, dim = tokens.shape
    rows = halving_matrix(height, tokens.dtype, tokens.device)
    columns = halving_matrix(width, tokens.dtype, tokens.device)
    mixed = (rows @ tokens.view(frames, height, width * dim)).view(-1, width, dim)
    return (columns @ mixed).view(frames, -1, dim)


@functools.cache
def halving_matrix(side: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Weights of the old places in each new one, [ceil(side / 2), side], with the corners not aligned."""
    half = -(-side // 2)
    place = ((torch.arange(half, dtype=torch.float64) + 0.5) * side / half - 0.5).clamp(min=0)
    distance = (place[:, None] - torch.arange(side, dtype=torch.float64)).abs()
    return (1 - distance).clamp(min=0).to(dtype).to(device)
