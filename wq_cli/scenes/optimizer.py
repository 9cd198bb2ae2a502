"""Muon for the matrices of the layers, AdamW for the rest; all numbers live on the device, as a CUDA graph needs."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
WEIGHT_DECAY = 0.05


class MuonAdamW:
    """Orthogonalised momentum (Jordan et al. 2024, "Muon") on matrices of equal shape at once.

    Updates are scaled to the size of AdamW's, 0.2 sqrt(max(rows, columns)) (Liu et al. 2025, arXiv 2502.16982), so that
    one learning rate serves both.

    Attributes:
        learning_rate: Scalar tensor on the device; fill it before a step.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.learning_rate = torch.zeros((), device=device)
        matrices: dict[torch.Size, list[Tensor]] = defaultdict(list)
        decayed: list[nn.Parameter] = []
        plain: list[nn.Parameter] = []
        for name, parameter in module.named_parameters():
            if parameter.ndim == 2 and ".layers." in name:
                matrices[parameter.shape].append(parameter)
            elif parameter.ndim >= 2:
                decayed.append(parameter)
            else:
                plain.append(parameter)
        self.matrices = list(matrices.values())
        self.momenta = [torch.zeros(len(group), *group[0].shape, device=device) for group in self.matrices]
        on_gpu = device.type == "cuda"
        self.adamw = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
            lr=self.learning_rate,
            betas=(0.9, 0.95),
            fused=on_gpu,
            capturable=on_gpu,
        )

    @torch.no_grad()
    def step(self) -> None:
        """One update from the gradients of the parameters."""
        self.adamw.step()
        for group, momentum in zip(self.matrices, self.momenta, strict=True):
            gradient = torch.stack([parameter.grad for parameter in group if parameter.grad is not None])
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonalise(gradient.lerp(momentum, MOMENTUM))
            update = update * (self.learning_rate * 0.2 * math.sqrt(max(update.shape[1:])))
            torch._foreach_mul_(group, 1 - self.learning_rate * WEIGHT_DECAY)
            torch._foreach_sub_(group, [*update.unbind()])


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Brings all singular values near 1 (Newton-Schulz iteration with Muon's coefficients).

    Args:
        matrices: [n, rows, columns].

    Returns:
        [n, rows, columns] float32.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    x = x.to(torch.bfloat16) if x.is_cuda else x
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.mT if tall else x).float()
    return result
