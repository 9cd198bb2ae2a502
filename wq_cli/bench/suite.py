"""Policies over the questions of a suite: accuracy by option likelihood, KL and agreement through the packed cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from wq_cli import decoding, engine, policies
from wq_cli.bench.measure import fidelity, forced
from wq_cli.results import EvalRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wq_cli.config import Generation, Quantization
    from wq_cli.models.base import Prompt, VideoModel

FULL = "fp16"


@dataclass(frozen=True)
class Item:
    """One question about one clip.

    Attributes:
        clip: Number of the clip; items of a clip follow each other.
        frames: RGB, uint8 [F, H, W, 3].
        pts_seconds: Time of each frame, [F].
        options: Candidate answers; `answer` is one of them.
    """

    clip: int
    frames: NDArray[np.uint8]
    pts_seconds: NDArray[np.float64]
    family: str
    question: str
    options: tuple[str, ...]
    answer: str


def scenes(questions: int, frames: int, seed: int) -> Iterator[Item]:
    """The held-out questions of the demo world, families asked equally often."""
    from wq_cli.scenes.suite import heldout

    for number, (clip, asked) in enumerate(heldout(questions, frames, seed)):
        pictures = clip.frames.permute(0, 2, 3, 1).contiguous().numpy()
        times = np.array(clip.pts_seconds)
        for q in asked:
            yield Item(number, pictures, times, q.family, q.text, q.options, q.answer)


@dataclass
class _Tally:
    """What one policy got so far, a list entry per question."""

    right: list[bool]
    clips: list[int]
    families: list[str]
    kl: list[float]
    same: list[float]
    tokens: list[int]
    bits: list[float]
    kv_bytes: list[int]
    kv_bytes_full: list[int]

    def row(self, policy: str) -> EvalRow:
        by_family: dict[str, list[bool]] = defaultdict(list)
        for family, right in zip(self.families, self.right, strict=True):
            by_family[family].append(right)
        return EvalRow(
            policy=policy,
            accuracy=float(np.mean(self.right)),
            standard_error=clustered_error(np.array(self.right, dtype=np.float64), np.array(self.clips)),
            families={family: float(np.mean(rights)) for family, rights in sorted(by_family.items())},
            kl_to_full=float(np.average(self.kl, weights=self.tokens)),
            greedy_agreement=float(np.average(self.same, weights=self.tokens)),
            effective_bits=float(np.mean(self.bits)),
            kv_bytes=float(np.mean(self.kv_bytes)),
            kv_bytes_full=float(np.mean(self.kv_bytes_full)),
        )


def clustered_error(values: NDArray[np.float64], clusters: NDArray[np.int64]) -> float:
    """Standard error of a mean whose terms are correlated within clusters (Liang and Zeger 1986).

    Args:
        values: [n].
        clusters: Cluster of each value, [n].
    """
    residuals = values - values.mean()
    sums = np.array([residuals[clusters == cluster].sum() for cluster in np.unique(clusters)])
    return float(np.sqrt((sums**2).sum()) / len(values))


class Evaluation:
    """Runs items through each policy and keeps the tallies.

    Args:
        names: Policies; full precision is run first in any case, as the reference.
        quantization: Settings of all of them; the policy's name is replaced.
        generation: `max_new_tokens` bounds the reference answers.
        sensitivity: Calibrated s_i of every layer, or None.
    """

    def __init__(
        self,
        model: VideoModel,
        names: Sequence[str],
        quantization: Quantization,
        generation: Generation,
        sensitivity: Sequence[float] | None = None,
    ) -> None:
        self.model = model
        self.names = list(dict.fromkeys((FULL, *names)))
        self.quantization = quantization
        self.generation = generation
        self.sensitivity = sensitivity
        self.tallies = {name: _Tally([], [], [], [], [], [], [], [], []) for name in self.names}
        self._clip: tuple[int, object] | None = None

    def add(self, item: Item) -> None:
        """Put one question to every policy."""
        if self._clip is None or self._clip[0] != item.clip:
            self._clip = (item.clip, self.model.encode(item.frames, item.pts_seconds))
        prompt = self.model.prompt(item.question, self._clip[1])  # type: ignore[arg-type]
        reference: tuple[list[int], torch.Tensor] | None = None
        for name in self.names:
            state = self._asked(prompt, name)
            answer = reference[0] if reference else self._greedy(state)
            log_probs = self._forced(state, answer)
            reference = reference or (answer, log_probs)
            kl, same = fidelity(reference[1], log_probs)
            likelihoods = [self._likelihood(state, option) for option in item.options]
            tally = self.tallies[name]
            tally.right.append(item.options[int(np.argmax(likelihoods))] == item.answer)
            tally.clips.append(item.clip)
            tally.families.append(item.family)
            tally.kl.append(kl)
            tally.same.append(same)
            tally.tokens.append(len(answer))
            tally.bits.append(state.cache.visual_bits)
            tally.kv_bytes.append(state.cache.nbytes)
            tally.kv_bytes_full.append(state.cache.full_nbytes)

    def rows(self, names: Sequence[str]) -> tuple[EvalRow, ...]:
        """What was found, in the order of `names`."""
        return tuple(self.tallies[name].row(name) for name in names)

    def _asked(self, prompt: Prompt, name: str) -> engine.Prefilled:
        """Video prefilled and sealed, question read through the packed cache."""
        settings = policies.beside_others(self.quantization, name)
        request = engine.prepare(
            self.model,
            [prompt],
            settings,
            room=self.generation.max_new_tokens,
            sensitivity=self.sensitivity,
            until_visual_end=True,
        )
        state = engine.prefill(self.model, request)
        engine.ask_through_cache(self.model, state, [prompt])
        return state

    def _greedy(self, state: engine.Prefilled) -> list[int]:
        """The answer that this cache gives, end included; the cache is left as it was."""
        answer = [int(token) for token in decoding.decode(self.model, state, self.generation)]
        engine.rewind(state, len(answer) - 1)
        return answer

    def _forced(self, state: engine.Prefilled, tokens: list[int]) -> torch.Tensor:
        """Log-probabilities at each position of a given answer, [1, T, vocabulary]; the cache is left as it was."""
        log_probs = forced(self.model, state, torch.tensor([tokens], device=state.logits.device))
        engine.rewind(state, len(tokens) - 1)
        return log_probs

    def _likelihood(self, state: engine.Prefilled, option: str) -> float:
        """Log-probability of an option followed by an end of the answer, whichever of them."""
        ids = list(self.model.processor.tokenizer(option, add_special_tokens=False)["input_ids"])
        ends = sorted(self.model.eos_ids)
        log_probs = self._forced(state, ids + ends[:1])[0]
        words = log_probs[: len(ids)].gather(1, torch.tensor(ids, device=log_probs.device)[:, None])
        return float(words.sum() + log_probs[len(ids) :, ends].logsumexp(dim=-1).sum())
