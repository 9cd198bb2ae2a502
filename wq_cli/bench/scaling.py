"""Memory and speed while the video grows: Figs 1b and 2 of the WindowQuant paper (`wq bench scaling`)."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from wq_cli import describe, pipeline
from wq_cli.bench import made_with, open_subject
from wq_cli.bench.measure import measure
from wq_cli.bench_results import ScalingResult, ScalingRow
from wq_cli.config import Generation, Settings
from wq_cli.errors import WqError
from wq_cli.policies import beside_others

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wq_cli.pipeline import Listener

DEFAULT_FRAMES = (25, 50, 100, 200)
DEFAULT_POLICIES = ("fp16", "windowquant")


def run(
    video: str | None,
    prompt: str,
    settings: Settings,
    listener: Listener,
    *,
    frames: Sequence[int] = DEFAULT_FRAMES,
    policies: Sequence[str] = DEFAULT_POLICIES,
    batch: int = 1,
    decode_tokens: int = 32,
    random_weights: bool = False,
) -> ScalingResult:
    """Measure policies on one clip, with more and more of its frames.

    Args:
        video, prompt, settings, listener, batch, decode_tokens, random_weights: See `wq_cli.bench.run`.
        frames: Numbers of frames.
        policies: Names in the order of the lines.

    Raises:
        WqError: Anything the user can fix.
    """
    counts = sorted(set(frames))
    generation = Generation(max_new_tokens=decode_tokens + 1)
    settings = replace(settings, sampling=replace(settings.sampling, frames=counts[-1]), generation=generation)
    with pipeline.backend(settings):
        subject = open_subject(video, prompt, settings, listener, random_weights)
        if subject.frames < counts[-1]:
            raise WqError(f"the clip has {subject.frames} frames, {counts[-1]} are asked for", "ask for fewer")
        model = subject.model
        listener.stage("measure", len(counts) * len(policies))
        rows = []
        for count in counts:
            asked = subject.prompt if count == subject.frames else subject.shortened(count)
            found = []
            for name in policies:
                quantization = beside_others(settings.quantization, name)
                changed = replace(settings, quantization=quantization)
                with pipeline.memory_errors(model.device, count, settings):
                    found.append(measure(model, [asked] * batch, changed, 0, None, subject.sensitivity).row)
                listener.advance()
            rows.append(ScalingRow(count, int(asked.visual_mask.sum()), tuple(found)))
    return ScalingResult(
        command="bench scaling",
        model=subject.described,
        batch=batch,
        decode_tokens=decode_tokens,
        rows=tuple(rows),
        settings=describe.policy(settings.quantization).settings,
        versions=made_with(model),
        date=date.today().isoformat(),
        notices=subject.notices,
    )
