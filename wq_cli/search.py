"""Which windows a question is about: eq 8 on the device, then numbers on the host that policies look at."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import torch

from wq_cli import windows
from wq_cli.device import HostCopy, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from wq_cli.config import Quantization
    from wq_cli.engine import Batch
    from wq_cli.policies.base import Policy

    Observer = Callable[[int, torch.Tensor, torch.Tensor], None]


class Search:
    """Scores of every request's windows; the first look at them waits until they have come from the device.

    Attributes:
        on_host: Times what becomes of the scores on the host.
    """

    def __init__(self, scores: torch.Tensor, settings: Quantization, on_device: Stopwatch) -> None:
        self._copy = HostCopy(scores)
        self._settings = settings
        self._on_device = on_device
        self.on_host = Stopwatch(torch.device("cpu"))

    @functools.cached_property
    def similarity(self) -> NDArray[np.float64]:
        """Raw scores, [B, W]."""
        scores: NDArray[np.float64] = self._copy.get().double().numpy()
        return scores

    @functools.cached_property
    def relevance(self) -> NDArray[np.float64]:
        """Scores as they meet the thresholds, [B, W]; NaN where a window takes no part."""
        similarity, settings = self.similarity, self._settings
        with self.on_host():
            return windows.relevance(similarity, settings.score_norm, settings.fixed_first_window)

    def timed(self, observe: Observer) -> Observer:
        """The same, timed on the device: what a policy looks at in the prefill is a score too."""

        def observed(layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
            with self._on_device():
                observe(layer, queries, keys)

        return observed

    @property
    def ms(self) -> float:
        """What scores and plans took so far, without waiting for the device in between."""
        return self._on_device.ms + self.on_host.ms


def search(batch: Batch, settings: Quantization, policy: Policy) -> Search:
    """Start to score the windows of every row; the scores are NaN when the policy does not look at them."""
    visual, watch = batch.visual, Stopwatch(batch.embeds.device)
    if not policy.needs_scores:
        return Search(torch.full((len(batch.questions), visual.windows), torch.nan), settings, watch)
    with watch(), torch.inference_mode():
        rows = zip(batch.embeds, batch.questions, visual.positions, strict=True)
        scores = [windows.similarity(row, text, settings.window, settings.scorer, at) for row, text, at in rows]
        return Search(torch.stack(scores), settings, watch)
