"""Windows of visual tokens: index arithmetic, similarity (eq 8), sensitivity (eq 9) and thresholds (eqs 10, 11).

Equation numbers are those of WindowQuant (arXiv 2605.02262); docs/method.md says how each is read. Letters:
M visual tokens, N text tokens, S tokens per window, W = M // S windows, D width of an embedding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from wq_cli.config import ScoreNorm, Scorer

# Below this spread the scores of a clip say nothing about its windows.
MIN_SCORE_SPREAD = 1e-6
# A shorter vector counts as zero, as in `torch.nn.functional.normalize`.
MIN_NORM = 1e-12
# Values compared at a time. They are read more than once, so that on a CPU they should fit in its cache; elsewhere they
# should be worth the launch of a kernel.
CPU_BLOCK_VALUES, BLOCK_VALUES = 2**20, 2**24


def similarity(
    embeds: torch.Tensor,
    text: torch.Tensor,
    window: int,
    scorer: Scorer = "cosine",
    visual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Score of every whole window against the text.

    Args:
        embeds: Projected visual tokens, or a prompt that holds them, [L, D].
        text: Embeddings of the question's tokens as the language model sees them, [N, D].
        window: S.
        scorer: `cosine` is eq 8, the mean cosine over all S x N pairs. Since the mean of products of unit vectors is
            the product of their means, it costs O((L + N) D); where a GPU multiplies in half precision, all pairs cost
            it less time than the means. `pearson` is the same after removing each row's mean.
            `euclidean` is 1 / (1 + mean distance), our reading of Table 11.
        visual: Places of the visual tokens in `embeds`, int64 [M]; None when it holds nothing else.

    Returns:
        [W] float32, on the device of `embeds`, without waiting for it. The last M mod S tokens are not scored.
    """
    if scorer == "cosine" and _multiplies_in_half(embeds, text):
        of_tokens = _cosines(embeds, text)
    else:
        of_tokens = _means_over_text(embeds, text.float(), scorer)
    if visual is not None:  # the text was scored too: that is cheaper than copying the visual tokens together
        of_tokens = of_tokens[visual]
    windows = len(of_tokens) // window
    means = of_tokens[: windows * window].unflatten(0, (windows, window)).flatten(1).mean(dim=1)
    return 1 / (1 + means) if scorer == "euclidean" else means


def _multiplies_in_half(*tensors: torch.Tensor) -> bool:
    """Whether the device multiplies the tensors as they are and adds up in float32."""
    kinds = {(x.device.type, x.dtype) for x in tensors}
    return len(kinds) == 1 and kinds <= {("cuda", torch.float16), ("cuda", torch.bfloat16)}


def _cosines(embeds: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    """Cosine of every pair in float32, [L, N], of tensors that are read as they are.

    Few kernels: the host takes longer to launch one than the device to run it.
    """
    norms = [torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32) for x in (embeds, text)]
    products = torch.mm(embeds, text.mT, out_dtype=torch.float32)
    return products.div_(torch.outer(*norms).clamp_(min=MIN_NORM))


def _means_over_text(embeds: torch.Tensor, text: torch.Tensor, scorer: Scorer) -> torch.Tensor:
    """Mean score of every token with all of the text's, [L]; for `euclidean` their mean distance."""
    if scorer == "pearson":
        text = text - text.mean(dim=-1, keepdim=True)
    direction = torch.nn.functional.normalize(text, dim=-1).mean(dim=0)
    scores = []
    for tokens in _float_blocks(embeds):
        if scorer == "euclidean":
            scores.append(torch.cdist(tokens, text).mean(dim=1))
            continue
        if scorer == "pearson":
            tokens = tokens - tokens.mean(dim=-1, keepdim=True)
        norms = torch.linalg.vector_norm(tokens, dim=-1)
        scores.append(tokens @ direction / norms.clamp(min=MIN_NORM))
    return torch.cat(scores)


def _float_blocks(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Some rows of [L, D] at a time in float32; where they are converted, each block takes the place of the last."""
    values = CPU_BLOCK_VALUES if x.device.type == "cpu" else BLOCK_VALUES
    blocks = x.split(max(1, values // x.shape[1]))
    if x.dtype == torch.float32:
        yield from blocks
        return
    # Memory that is allocated anew for every block has to be mapped anew: on a CPU that takes longer than all the rest.
    place = torch.empty_like(blocks[0], dtype=torch.float32)
    for block in blocks:
        yield place[: len(block)].copy_(block)


def relevance(scores: NDArray[np.float64], norm: ScoreNorm, fixed_first_window: bool = True) -> NDArray[np.float64]:
    """Scores as they meet the thresholds.

    The thresholds live in (0, 1), raw scores of eq 8 do not, so by default they are stretched over each question's
    windows; a first window that is fixed at full precision takes no part (our reading of section 3.2.1).

    Args:
        scores: Raw similarity, [..., W].
        norm: `minmax` maps the lowest to 0 and the highest to 1; `rank` gives (rank + 1/2) / W, which makes the shares
            of the widths exact; `raw` leaves them.
        fixed_first_window: Whether window 0 is left out.

    Returns:
        [..., W]. NaN for a window that takes no part, and for all of a question when there is nothing to tell apart.
    """
    result = np.full(scores.shape, np.nan)
    taking_part = (..., slice(1 if fixed_first_window else 0, None))
    chosen = scores[taking_part]
    count = chosen.shape[-1]
    if norm == "raw":
        result[taking_part] = chosen
    elif count >= 2:
        lowest = chosen.min(axis=-1, keepdims=True)
        spread = chosen.max(axis=-1, keepdims=True) - lowest
        spread[spread < MIN_SCORE_SPREAD] = np.nan
        if norm == "minmax":
            result[taking_part] = (chosen - lowest) / spread
        else:
            ranks = chosen.argsort(axis=-1, kind="stable").argsort(axis=-1)
            result[taking_part] = np.where(np.isnan(spread), np.nan, (ranks + 0.5) / count)
    return result


def sensitivity(before: torch.Tensor, after: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """How little a layer's attention changes the residual stream (eq 9): 1 is a layer that does nothing.

    Args:
        before: Residual stream that enters the layer, before its norm, [B, L, D].
        after: The stream after the attention output was added, [B, L, D].
        mask: True for tokens that count, [B, L]; None for all of them.

    Returns:
        Scalar float32: cosine per token, averaged, clamped to [0, 1]. SqueezeAttention (arXiv 2404.04793) measures
        the same.
    """
    blocks = zip(_float_blocks(before.flatten(0, -2)), _float_blocks(after.flatten(0, -2)), strict=True)
    cosines = [torch.nn.functional.cosine_similarity(x, y, dim=-1) for x, y in blocks]
    cosine = torch.cat(cosines).view(before.shape[:-1])
    # Not `cosine[mask]`: how long that is the host would have to wait for.
    mean = cosine.mean() if mask is None else torch.where(mask, cosine, 0).sum() / mask.sum()
    return mean.clamp(0, 1)


def thresholds(sensitivity: float, alpha: float) -> tuple[float, float]:
    """(T_low, T_high) of a layer, eqs 10 and 11.

    Invariant: T_low <= s <= T_high for alpha > 0, with equality at s = 0 and s = 1.
    """
    high = math.expm1(-alpha * sensitivity) / math.expm1(-alpha)
    # f1(s) = e^(a (s - 1)) f2(s); as it is printed, eq 10 overflows for a large alpha.
    low = math.exp(alpha * (sensitivity - 1)) * high
    return low, high


def vote(levels: NDArray[np.int64]) -> NDArray[np.int64]:
    """One level per window for a whole batch: the most frequent one, ties to the higher.

    Args:
        levels: Level of each window for each request, 0 lowest, [B, W].

    Returns:
        [W].
    """
    if len(levels) == 1:
        return levels[0]
    highest = int(levels.max(initial=0))
    counts = (levels == np.arange(highest, -1, -1)[:, None, None]).sum(axis=1)
    return highest - counts.argmax(axis=0)
