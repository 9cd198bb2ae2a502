"""How the error of one channel's code is made good by the channels that are rounded after it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Added to the diagonal of the moment, against its mean: queries to come are not quite those seen.
DAMPING = 0.1


@dataclass(frozen=True)
class Compensation:
    """Codes that keep e^T H e of every token's error e small, H the second moment of the queries.

    For a token that is E[(q . e)^2], the squared error of its score. Channels are rounded from the one that counts most
    to the one that counts least, and the error of each is spread over the rest as GPTQ does for weights (arXiv
    2210.17323, algorithm 1), with queries in the place of activations.

    Attributes:
        order: The channel that is rounded first, second, ..., int64 [B, Hkv, D].
        shares: What of the error of the j-th of them every channel takes on, float32 [B, Hkv, D, D], contiguous; 0 for
            itself and for those before it.
    """

    order: Tensor
    shares: Tensor

    @classmethod
    def of(cls, moment: Tensor, variance: Tensor) -> Compensation:
        """For keys that are read by queries of this second moment; waits for nothing on a GPU.

        Args:
            moment: H, [B, Hkv, D, D].
            variance: How much the values of a channel vary inside a window, [B, Hkv, D]: errors will be in proportion.
        """
        order = (moment.diagonal(dim1=-2, dim2=-1) * variance).argsort(dim=-1, descending=True)
        # From the last channel to the first: the upper factor of the inverse is then the inverse of a lower one.
        behind = order.flip(-1)
        h = moment.double()
        h = h.gather(2, behind[..., None].expand_as(h)).gather(3, behind[:, :, None].expand_as(h))
        mean = h.diagonal(dim1=-2, dim2=-1).mean(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
        eye = torch.eye(h.shape[-1], dtype=h.dtype, device=h.device)
        lower, _ = torch.linalg.cholesky_ex(h / mean[..., None, None] + DAMPING * eye)
        factor = torch.linalg.solve_triangular(lower, eye, upper=False).flip(-2, -1)
        shares = (factor / factor.diagonal(dim1=-2, dim2=-1)[..., None]).triu(1).float()
        place = order.argsort(dim=-1)
        return cls(order, shares.gather(3, place[:, :, None].expand_as(shares)))
