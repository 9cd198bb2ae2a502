"""The paper's looks inside a model (arXiv 2605.02262): prompts and attention over windows, streams over layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli import engine, pipeline, suites
from wq_cli.bench import SCENE_FPS, SCENE_SEED, SCENE_SIZE, made_with, open_model
from wq_cli.bench.scoring import prompt_text
from wq_cli.measurements import sensitivity
from wq_cli.results import CurveResult, InspectResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wq_cli.config import Settings
    from wq_cli.models.base import Prompt, VideoModel
    from wq_cli.pipeline import Listener
    from wq_cli.video import Clip

PROMPTS = 6
COMMAND = "bench ablation"


def prompts(settings: Settings, listener: Listener) -> tuple[InspectResult, Clip]:
    """Fig 3: the relevance of every window of one scene to several questions about it, and the clip."""
    from wq_cli import profile
    from wq_cli.scenes.make import make

    frames = settings.sampling.frames or profile.load(settings.runtime.profile).frames
    with TemporaryDirectory(prefix="wq-prompts-") as folder:
        path = Path(folder) / "scene.mp4"
        listener.stage("render")
        seconds = max(12.0, frames / SCENE_FPS)
        asked = make(path, seed=SCENE_SEED, seconds=seconds, fps=SCENE_FPS, size=SCENE_SIZE)
        result, clip = pipeline.inspect(str(path), [q.text for q in asked[:PROMPTS]], settings, listener)
    video = replace(result.video, path=f"rendered scene, seed {SCENE_SEED}")
    return replace(result, command=COMMAND, video=video), clip


def first_tokens(settings: Settings, listener: Listener, questions: int | None) -> CurveResult:
    """Fig 7: how the attention that question and answer prefix pay to the video is spread over its windows."""
    window = settings.quantization.window

    def measured(model: VideoModel, prompt: Prompt) -> NDArray[np.float64]:
        return attention_of_windows(model, prompt, window)

    found = _over_questions(settings, listener, questions, measured)
    layers = np.mean(found.rows, axis=0)
    shown = {"mean over layers": layers.mean(axis=0)} | {
        f"layer {layer}": layers[layer] for layer in (0, len(layers) // 2, len(layers) - 1)
    }
    return CurveResult(
        name="first-tokens",
        source="Fig 7",
        says="share of the attention to visual tokens that goes to each window, from the tokens after the video",
        x_label="window",
        y_label="share of the attention to the video",
        curves={label: tuple(float(share) for share in curve) for label, curve in shown.items()},
        **found.conditions,
    )


@torch.inference_mode()
def attention_of_windows(model: VideoModel, prompt: Prompt, window: int) -> NDArray[np.float64]:
    """Share of the attention to visual tokens that goes to each whole window, [layers, W].

    Queries are the tokens after the video, all heads alike. They run through an ordinary cache of the rest, so that the
    weights, which only the model's eager attention gives, are few.
    """
    from transformers import DynamicCache

    end, cache, config = prompt.visual_end, DynamicCache(config=model.text_config), model.text_config
    deepstack = {}
    if prompt.deepstack is not None:
        deepstack = model.deepstack_inputs(prompt.visual_mask[None, :end], prompt.deepstack)

    def run(tokens: slice, **more: Any) -> Any:
        embeds, positions = prompt.embeds[None, tokens], prompt.positions[..., None, tokens]
        decoder_class: Any = type(model.decoder)
        held = {engine._cache_argument(decoder_class): cache}
        return model.decoder(inputs_embeds=embeds, position_ids=positions, use_cache=True, **held, **more)

    with model.lock:
        run(slice(0, end), **deepstack)
        before = config._attn_implementation
        config._attn_implementation = "eager"
        try:
            attentions = run(slice(end, None), output_attentions=True).attentions
        finally:
            config._attn_implementation = before
    rows = []
    for weights in attentions:
        paid = weights[0, ..., prompt.visual_mask.nonzero()[:, 0]].double().mean(dim=(0, 1))
        share = paid / paid.sum()
        rows.append(share[: len(share) // window * window].view(-1, window).sum(dim=1).cpu().numpy())
    return np.stack(rows)


def layers(settings: Settings, listener: Listener, questions: int | None) -> CurveResult:
    """Fig 8: s_i of every layer (eq 9), its mean and its spread over the questions."""

    def measured(model: VideoModel, prompt: Prompt) -> NDArray[np.float64]:
        return sensitivity(model, prompt)["sensitivity"]

    found = _over_questions(settings, listener, questions, measured)
    shown = {name: of(found.rows, axis=0) for name, of in (("mean", np.mean), ("lowest", np.min), ("highest", np.max))}
    return CurveResult(
        name="layers",
        source="Fig 8",
        says="cosine of the residual stream before and after the attention of each layer (eq 9)",
        x_label="layer",
        y_label="cosine similarity",
        curves={label: tuple(float(s) for s in curve) for label, curve in shown.items()},
        **found.conditions,
    )


@dataclass(frozen=True)
class _Measured:
    """What was measured on each question of the demo world, and on what."""

    rows: list[NDArray[np.float64]]
    conditions: dict[str, Any]


def _over_questions(
    settings: Settings,
    listener: Listener,
    questions: int | None,
    measured: Callable[[VideoModel, Prompt], NDArray[np.float64]],
) -> _Measured:
    seed = settings.quantization.seed
    items, _ = suites.load(suites.Questions(count=questions), seed)
    with pipeline.backend(settings):
        opened = open_model(settings, listener)
        model, frames = opened.model, settings.sampling.frames or opened.profile.frames
        listener.stage("ask", len(items))
        rows = []
        for item in items:
            pictures = item.footage.read(frames, opened.profile.max_side, settings.limits)
            with pipeline.memory_errors(model.device, frames, settings):
                visual = model.encode(pictures.frames, pictures.pts_seconds)
                rows.append(measured(model, model.prompt(prompt_text(item, "likelihood"), visual)))
            listener.advance()
    conditions = {
        "command": COMMAND,
        "model": opened.described,
        "questions": len(items),
        "frames": frames,
        "seed": seed,
        "versions": made_with(model),
        "date": date.today().isoformat(),
    }
    return _Measured(rows, conditions)
