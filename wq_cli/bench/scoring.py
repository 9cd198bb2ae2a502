"""One question through several variants of the cache: option likelihood or letter, KL, agreement, bits, bytes, speed.

Every variant is held to the same rule: video prefilled at full precision, sealed, and only then the question, the
answers and the options, all through the packed cache. The questions of a clip and their variants share one prefill
where the memory for it is there.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli import decoding, engine, policies
from wq_cli.bench.measure import fidelity, forced
from wq_cli.errors import BudgetError
from wq_cli.recorded import Kept, Recording
from wq_cli.results import EvalRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from wq_cli.config import AnswerMode, Generation, Quantization
    from wq_cli.models.base import Prompt, VideoModel
    from wq_cli.suites.item import Item

TEMPLATES = {
    "likelihood": "{question}\nOptions:\n{options}\nAnswer with one of the options.",
    "letter": "{question}\nOptions:\n{options}\nAnswer with the letter of the right option.",
}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Answer:
    """What one variant made of one question.

    Attributes:
        choice: The option it gave; None for a letter that is none of theirs.
        text: Greedy answer.
        log_likelihoods: Of each option with an end behind it, in nats; None where a letter was asked for.
        kl: Mean KL(full || variant) in nats over the tokens of the full-precision answer.
        same: Share of those tokens that are the likeliest for the variant too.
        steps, step_ms: Tokens of its own answer after the first, and what they took together.
    """

    choice: str | None
    text: str
    log_likelihoods: tuple[float, ...] | None
    kl: float
    same: float
    effective_bits: float
    kv_bytes: int
    kv_bytes_full: int
    metadata_bytes: int
    search_ms: float
    steps: int
    step_ms: float


@dataclass(frozen=True)
class Scored:
    """One question with every variant's answer: a line of the record.

    Attributes:
        pts_seconds: Times of the frames that were seen.
        prompt: The question as it was put, inside the model's chat template.
        reference_ids: Tokens of the full-precision answer, over which KL and agreement are taken.
    """

    id: str
    clip: str
    family: str
    prompt: str
    options: tuple[str, ...]
    answer: str
    pts_seconds: tuple[float, ...]
    visual_tokens: int
    reference_ids: tuple[int, ...]
    answers: dict[str, Answer]

    @classmethod
    def of_json(cls, line: dict[str, Any]) -> Scored:
        """Back from a line of the record.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: The line holds something else.
        """
        sequences = {name: tuple(line[name]) for name in ("options", "pts_seconds", "reference_ids")}
        answers = {name: Answer(**answer) for name, answer in line["answers"].items()}
        scored = cls(**(line | sequences | {"answers": answers}))
        _check_types(scored)
        if not scored.reference_ids:
            raise ValueError("there is no answer to compare with")
        for answer in answers.values():
            _check_types(answer)
        return scored


def _check_types(part: Scored | Answer) -> None:
    """
    Raises:
        TypeError: A number or a text is something else.
    """
    kinds = {"int": int, "float": int | float, "str": str}
    for field in fields(part):
        value = getattr(part, field.name)
        if not isinstance(value, kinds.get(str(field.type), object)):
            raise TypeError(f"`{field.name}` is no {field.type}")


def prompt_text(item: Item, mode: AnswerMode) -> str:
    """The question as it is put to the model; the options are read out unless it stands without them."""
    if "(A)" in item.question or (item.is_open and mode == "likelihood"):
        return item.question
    lettered = len(item.options) <= len(_LETTERS)
    listed = [f"({_LETTERS[i]}) {option}" if lettered else option for i, option in enumerate(item.options)]
    return TEMPLATES[mode].format(question=item.question, options="\n".join(listed))


def chosen(text: str, options: Sequence[str]) -> str | None:
    """The option that an answer names by its letter, alone or before a bracket, full stop or colon, or by its text."""
    text = text.strip()
    for option in options:
        if text.rstrip(".").casefold() == option.rstrip(".").casefold():
            return option
    letter = re.match(r"\(?([A-Z])([).:]|$)", text)
    place = _LETTERS.index(letter[1]) if letter else len(options)
    return options[place] if place < len(options) else None


def clustered_error(
    values: NDArray[np.float64], clusters: NDArray[Any], weights: NDArray[np.float64] | None = None
) -> float | None:
    """Standard error of a weighted mean whose terms are correlated within clusters (Liang and Zeger 1986).

    One cluster says nothing of how clusters differ: None.

    Args:
        values: [n].
        clusters: Cluster of each value, [n].
        weights: [n]; None for equal ones.
    """
    each = np.unique(clusters)
    if len(each) < 2:
        return None
    weights = np.ones(len(values)) if weights is None else weights
    residuals = weights * (values - np.average(values, weights=weights))
    sums = np.array([residuals[clusters == cluster].sum() for cluster in each])
    return float(np.sqrt((sums**2).sum()) / weights.sum())


def row(label: str, settings: Quantization, scored: Sequence[Scored]) -> EvalRow:
    """One variant over all questions."""
    answers = [question.answers[label] for question in scored]
    right = np.array([q.answers[label].choice == q.answer for q in scored], dtype=np.float64)
    by_family: dict[str, list[float]] = defaultdict(list)
    for question, is_right in zip(scored, right.tolist(), strict=True):
        by_family[question.family].append(is_right)
    clips = np.array([question.clip for question in scored])
    tokens = np.array([len(question.reference_ids) for question in scored], dtype=np.float64)
    kl = np.array([answer.kl for answer in answers])
    steps, step_ms = sum(a.steps for a in answers), sum(a.step_ms for a in answers)
    return EvalRow(
        label=label,
        policy=settings.policy,
        bits_asked=settings.bits,
        accuracy=float(right.mean()),
        standard_error=clustered_error(right, clips),
        families={family: float(np.mean(rights)) for family, rights in sorted(by_family.items())},
        kl_to_full=float(np.average(kl, weights=tokens)),
        kl_standard_error=clustered_error(kl, clips, tokens),
        greedy_agreement=float(np.average([a.same for a in answers], weights=tokens)),
        effective_bits=float(np.mean([a.effective_bits for a in answers])),
        kv_bytes=float(np.mean([a.kv_bytes for a in answers])),
        kv_bytes_full=float(np.mean([a.kv_bytes_full for a in answers])),
        metadata_bytes=float(np.mean([a.metadata_bytes for a in answers])),
        search_ms=float(np.median([a.search_ms for a in answers])),
        tokens_per_second=1e3 * steps / step_ms if step_ms else None,
    )


@dataclass(frozen=True)
class _Reference:
    """The full-precision answer to a question, and its log-probabilities [1, T, vocabulary]."""

    ids: tuple[int, ...]
    log_probs: torch.Tensor


class Scorer:
    """Puts questions to variants of the cache.

    Args:
        model: The adapter.
        variants: Settings by label; the first is the full-precision reference.
        generation: `max_new_tokens` bounds the answers.
        mode: How an option is chosen.
        sensitivity: Calibrated s_i of every layer, or None.

    Attributes:
        variants: As given, until `narrow` left some out.
    """

    def __init__(
        self,
        model: VideoModel,
        variants: Mapping[str, Quantization],
        generation: Generation,
        mode: AnswerMode = "likelihood",
        sensitivity: Sequence[float] | None = None,
    ) -> None:
        self.model = model
        self.variants = dict(variants)
        self.generation = generation
        self.mode = mode
        self.sensitivity = sensitivity

    def narrow(self, prompt: Prompt) -> None:
        """Leave out the variants whose budget is too small for a prompt.

        Raises:
            BudgetError: None is left beside the reference.
        """
        refused = {}
        for label, settings in self.variants.items():
            try:
                self._prepared(prompt, settings)
            except BudgetError as error:
                refused[label] = error
        if refused and len(refused) == len(self.variants) - 1:
            raise next(iter(refused.values()))
        self.variants = {label: settings for label, settings in self.variants.items() if label not in refused}

    def recording_of(self, prompt: Prompt) -> Recording | None:
        """The prefill that the questions of a clip share; None where there is no memory for it."""
        kept = Kept.for_policies(policies.create(settings) for settings in self.variants.values())
        return Recording.if_it_fits(self.model, prompt, self.sensitivity, kept)

    def ask(
        self, item: Item, prompt: Prompt, pts_seconds: NDArray[np.float64], recording: Recording | None = None
    ) -> Scored:
        """Put one question to every variant.

        Args:
            item: The question.
            prompt: The same as the model sees it, `prompt_text` with its clip.
            pts_seconds: Times of the frames.
            recording: The prefill of its clip; None lets every variant make its own.

        Raises:
            BudgetError: The budget of a variant is too small for this prompt.
        """
        reference: _Reference | None = None
        answers = {}
        for label, settings in self.variants.items():
            request = self._prepared(prompt, settings)
            state = engine.prefill(self.model, request) if recording is None else recording.prefill(request)
            engine.ask_through_cache(self.model, state, [prompt])
            ids, step_ms = self._greedy(state)
            reference = reference or _Reference(tuple(ids), self._forced(state, ids))
            answers[label] = self._answer(item, state, ids, step_ms, request.found.ms, reference)
        assert reference is not None
        return Scored(
            id=item.id,
            clip=item.clip,
            family=item.family,
            prompt=prompt_text(item, self.mode),
            options=item.options,
            answer=item.answer,
            pts_seconds=tuple(float(t) for t in pts_seconds),
            visual_tokens=int(prompt.visual_mask.sum()),
            reference_ids=reference.ids,
            answers=answers,
        )

    def _prepared(self, prompt: Prompt, settings: Quantization) -> engine.Request:
        return engine.prepare(
            self.model,
            [prompt],
            settings,
            room=self.generation.max_new_tokens,
            sensitivity=self.sensitivity,
            until_visual_end=True,
        )

    def _answer(
        self,
        item: Item,
        state: engine.Prefilled,
        ids: list[int],
        step_ms: float,
        search_ms: float,
        reference: _Reference,
    ) -> Answer:
        """What a variant makes of a question that its cache has read, and whose greedy answer is `ids`."""
        kl, same = fidelity(reference.log_probs, self._forced(state, reference.ids))
        text = self.model.text_of(ids).strip()
        likelihoods, choice = None, chosen(text, item.options)
        if self.mode == "likelihood":
            likelihoods = tuple(self.likelihood(state, option) for option in item.options)
            choice = item.options[int(np.argmax(likelihoods))]
        return Answer(
            choice=choice,
            text=text,
            log_likelihoods=likelihoods,
            kl=kl,
            same=same,
            effective_bits=state.cache.visual_bits,
            kv_bytes=state.cache.nbytes,
            kv_bytes_full=state.cache.full_nbytes,
            metadata_bytes=state.cache.metadata_nbytes,
            search_ms=search_ms,
            steps=len(ids) - 1,
            step_ms=step_ms,
        )

    def _greedy(self, state: engine.Prefilled) -> tuple[list[int], float]:
        """(Answer that this cache gives, end included; ms of all tokens but the first). The cache is left as it was."""
        ids, marks = [], []
        for token in decoding.decode(self.model, state, self.generation):
            ids.append(int(token))
            marks.append(time.perf_counter())
        engine.rewind(state, len(ids) - 1)
        return ids, 1e3 * sum(after - before for before, after in pairwise(marks))

    def _forced(self, state: engine.Prefilled, tokens: Sequence[int]) -> torch.Tensor:
        """Log-probabilities at each position of a given answer, [1, T, vocabulary]; the cache is left as it was."""
        log_probs = forced(self.model, state, torch.tensor([list(tokens)], device=state.logits.device))
        engine.rewind(state, len(tokens) - 1)
        return log_probs

    def likelihood(self, state: engine.Prefilled, option: str) -> float:
        """Log-probability of an option followed by an end of the answer, whichever of them; the cache stays."""
        ids = list(self.model.processor.tokenizer(option, add_special_tokens=False)["input_ids"])
        ends = sorted(self.model.eos_ids)
        log_probs = self._forced(state, ids + ends[:1])[0]
        words = log_probs[: len(ids)].gather(1, torch.tensor(ids, device=log_probs.device)[:, None])
        return float(words.sum() + log_probs[len(ids) :, ends].logsumexp(dim=-1).sum())
