"""Variants of the cache over the questions of a suite: policies (`wq eval`) or settings (`wq bench ablation`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wq_cli import describe, offline, pipeline, policies, room, suites
from wq_cli.bench import FULL, made_with, open_model
from wq_cli.bench.record import Record
from wq_cli.bench.scoring import TEMPLATES, Scorer, prompt_text, row
from wq_cli.config import AnswerMode, Quantization, Settings
from wq_cli.errors import BudgetError, DeviceError, WqError
from wq_cli.policies.options import name_of
from wq_cli.results import EvalResult, SkippedResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wq_cli.bench import OpenedModel
    from wq_cli.models.base import Prompt, VideoModel, VisualFeatures
    from wq_cli.pipeline import Listener
    from wq_cli.profile import Profile
    from wq_cli.recorded import Recording
    from wq_cli.suites import Questions
    from wq_cli.suites.item import Item, Pictures


def variants(settings: Quantization, names: Sequence[str], budgets: Sequence[float] = ()) -> dict[str, Quantization]:
    """Settings of each row by its label, full precision first.

    Args:
        settings: Of all rows; the policy's name and budget are replaced.
        names: Policies.
        budgets: Average effective bits: a row for each, for policies that have something to choose.
    """
    made = {FULL: policies.beside_others(replace(settings, bits=None), FULL)}
    for name in names:
        for bits in budgets or (settings.bits,):
            chosen = policies.beside_others(replace(settings, bits=bits), name)
            made[name if chosen.bits is None else f"{name} @ {chosen.bits:g}"] = chosen
    return made


def evaluate(
    settings: Settings,
    listener: Listener,
    asked: Questions,
    rows: Mapping[str, Quantization],
    *,
    record: Path | None = None,
    command: str = "eval",
    leave_out: bool = False,
) -> EvalResult:
    """Variants of the cache over the questions of a suite, each question read through the packed cache.

    Args:
        settings: All options; `sampling.frames` frames a clip, `quantization.seed` chooses the questions.
        listener: Told of stages: load, then ask with one step per question.
        asked: The questions.
        rows: Settings by label, the full-precision reference first.
        record: File of JSON lines to fill, or to go on from.
        command: What the result is called.
        leave_out: Go on without the rows whose policies lack what they need of the model; a notice tells them.

    Raises:
        WqError: Anything the user can fix.
    """
    from wq_cli import profile as profiles

    seed = settings.quantization.seed
    items, skipped = suites.load(asked, seed)
    frames = settings.sampling.frames or profiles.load(settings.runtime.profile).frames
    settings = replace(settings, sampling=replace(settings.sampling, frames=frames))
    with pipeline.backend(settings):
        opened = open_model(settings, listener)
        model = opened.model
        unusable = dict(_unusable(model, rows))
        if unusable and not leave_out:
            raise next(iter(unusable.values()))
        rows = {label: row_settings for label, row_settings in rows.items() if label not in unusable}
        header = {"command": command, "suite": asked.suite, "answer": asked.mode, "questions": len(items)}
        kept = Record(record, header | _conditions(opened, settings, asked.mode, rows))
        within = {label: rows[label] for label in kept.labels or rows}
        scorer = Scorer(model, within, settings.generation, asked.mode, opened.sensitivity)
        listener.stage("ask", len(items))
        left_out = list(_ask_all(scorer, items, kept, opened.profile, settings, listener))
    scored = [kept.scored[item.id] for item in items if item.id in kept.scored]
    if not scored:
        raise WqError(f"no question of `{asked.suite}` can be asked: {left_out[0].reason}")
    skips = (*(SkippedResult(item.id, item.reason) for item in skipped), *left_out)
    return EvalResult(
        command=command,
        suite=asked.suite,
        model=opened.described,
        settings=describe.policy(settings.quantization).settings,
        seed=seed,
        frames=frames,
        clips=len({question.clip for question in scored}),
        questions=len(scored),
        answer=asked.mode,
        answer_tokens=settings.generation.max_new_tokens,
        rows=tuple(row(label, variant, scored) for label, variant in scorer.variants.items()),
        versions=made_with(model),
        date=date.today().isoformat(),
        skipped=skips,
        notices=(
            *(f"{error.message}: left out" for error in unusable.values()),
            *_out_of_reach([label for label in rows if label not in scorer.variants]),
            *_notices(skips),
        ),
    )


def _conditions(
    opened: OpenedModel, settings: Settings, mode: AnswerMode, rows: Mapping[str, Quantization]
) -> dict[str, Any]:
    """What every score depends on besides the suite."""
    model, sensitivity = opened.model, opened.sensitivity
    return {
        "model": asdict(opened.described),
        "chat_template": getattr(model.processor, "chat_template", None),
        "template": TEMPLATES[mode],
        "frames": settings.sampling.frames,
        "max_side": opened.profile.max_side,
        "answer_tokens": settings.generation.max_new_tokens,
        "seed": settings.quantization.seed,
        "sensitivity": None if sensitivity is None else list(sensitivity),
        "variants": {label: asdict(variant) for label, variant in rows.items()},
        "versions": made_with(model),
        "date": date.today().isoformat(),
    }


def _unusable(model: VideoModel, rows: Mapping[str, Quantization]) -> Iterator[tuple[str, WqError]]:
    """Rows whose policies were told nothing of this model, and what they say."""
    for label, settings in rows.items():
        if policies.create(settings).needs_numbers:
            try:
                offline.read(model.profile, name_of(settings.policy), model.text_config.num_hidden_layers)
            except WqError as error:
                yield label, error


def _ask_all(
    scorer: Scorer, items: Sequence[Item], kept: Record, profile: Profile, settings: Settings, listener: Listener
) -> Iterator[SkippedResult]:
    """Put the questions that are not in the record yet; what is yielded could not be asked."""
    for _, about in groupby(items, key=lambda item: item.clip):
        of_clip = list(about)
        open_ = [item for item in of_clip if item.id not in kept.scored]
        listener.advance(len(of_clip) - len(open_))
        if not open_:
            continue
        try:
            pictures, visual = _seen(scorer.model, open_[0], profile, settings)
        except DeviceError:
            raise
        except WqError as error:
            yield from (SkippedResult(item.id, error.message) for item in open_)
            listener.advance(len(open_))
            continue
        yield from _ask_of_clip(scorer, open_, kept, pictures, visual, settings, listener)


def _ask_of_clip(
    scorer: Scorer,
    items: Sequence[Item],
    kept: Record,
    pictures: Pictures,
    visual: VisualFeatures,
    settings: Settings,
    listener: Listener,
) -> Iterator[SkippedResult]:
    """Put questions about one clip; the first of a run settles which variants have room in their budgets."""
    recording: Recording | None = None
    for item in items:
        try:
            prompt = _prompt(scorer.model, item, visual, len(pictures.frames), scorer.mode, settings)
        except WqError as error:
            yield SkippedResult(item.id, error.message)
            listener.advance()
            continue
        with pipeline.memory_errors(scorer.model.device, len(pictures.frames), settings):
            if not kept.scored:
                scorer.narrow(prompt)
            if recording is None or not recording.begins(prompt):
                recording = None  # gone before the next one is made
                recording = scorer.recording_of(prompt)
            try:
                kept.add(scorer.ask(item, prompt, pictures.pts_seconds, recording))
            except BudgetError as error:
                yield SkippedResult(item.id, error.message)
        listener.advance()


def _seen(model: VideoModel, item: Item, profile: Profile, settings: Settings) -> tuple[Pictures, VisualFeatures]:
    """The frames of a question's clip, and what the model makes of them."""
    pictures = item.footage.read(settings.sampling.frames or profile.frames, profile.max_side, settings.limits)
    with pipeline.memory_errors(model.device, len(pictures.frames), settings):
        return pictures, model.encode(pictures.frames, pictures.pts_seconds)


def _prompt(
    model: VideoModel, item: Item, visual: VisualFeatures, frames: int, mode: AnswerMode, settings: Settings
) -> Prompt:
    """The question as the model sees it.

    Raises:
        WqError: It does not fit the context, or holds the placeholder of a video.
    """
    prompt = model.prompt(prompt_text(item, mode), visual, settings.quantization.score_text == "prompt")
    tokens = len(visual.embeds)
    new_tokens = settings.generation.max_new_tokens
    text_tokens = len(prompt.embeds) - tokens
    room.check_context(
        model.text_config, frames=frames, visual_tokens=tokens, text_tokens=text_tokens, new_tokens=new_tokens
    )
    return prompt


def _out_of_reach(labels: Sequence[str]) -> Iterator[str]:
    """One sentence on the rows that had no room."""
    if labels:
        yield f"budgets too small for the lowest widths of their policies are left out: {', '.join(labels)}"


def _notices(skips: Sequence[SkippedResult]) -> Iterator[str]:
    """One sentence on what was left out, with the first reasons."""
    if skips:
        shown = "; ".join(f"{item.id}: {item.reason}" for item in skips[:3])
        yield f"{len(skips)} questions are left out ({shown}{'; ...' if len(skips) > 3 else ''})"
