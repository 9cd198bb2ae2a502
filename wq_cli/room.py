"""How many frames a model has room for: refused or thinned, before its weights are read where that can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wq_cli.errors import WqError
from wq_cli.models import sizing

if TYPE_CHECKING:
    from collections.abc import Callable

    from wq_cli.config import Sampling
    from wq_cli.models.base import VideoModel
    from wq_cli.video import Clip, VideoInfo


def context(text_config: Any) -> tuple[int, str]:
    """(Tokens that a prompt and its answer may have, why no more).

    A layer with a sliding window must see all of them: windows that were reordered have no last tokens to look back on.
    """
    positions, seen = int(text_config.max_position_embeddings), getattr(text_config, "sliding_window", None)
    if seen is not None and seen < positions:
        return seen, f"layers of the model see the last {seen} only"
    return positions, f"the model has {positions} positions"


def check_context(text_config: Any, *, frames: int, visual_tokens: int, text_tokens: int, new_tokens: int) -> None:
    """Refuse a prompt and answer that are longer than what the language model was made for.

    Raises:
        WqError: They are; the hint names a number of frames that fits.
    """
    most, reason = context(text_config)
    needed = visual_tokens + text_tokens + new_tokens
    if needed <= most:
        return
    fits = (most - new_tokens - text_tokens) * frames // visual_tokens
    raise WqError(
        f"{frames} frames, question and answer need {needed} tokens, {reason}",
        f"`--frames {fits}` fits" if fits > 0 else f"lower `--max-new-tokens` (now {new_tokens})",
    )


def check_before_weights(
    outline: VideoModel,
    info: VideoInfo,
    *,
    planned_frames: int,
    max_side: int | None,
    new_tokens: int,
    read_clip: Callable[[], Clip],
) -> None:
    """Refuse a clip that cannot fit the model's context while only its config is known.

    Args:
        outline: The model without weights.
        info: The probed video.
        planned_frames: How many frames are asked for; the clip may turn out to have fewer.
        max_side: See `wq_cli.video.read`.
        new_tokens: Longest answer.
        read_clip: Waits for the clip; called only when the planned frames do not seem to fit. A model may give each of
            many frames less than it gives each of two.

    Raises:
        WqError: The clip's visual tokens and the answer alone are too many.
    """
    from wq_cli.video.picture import fit

    width, height = fit(info.width, info.height, max_side)
    cost = sizing.VisualCost.of(outline, np.zeros((2, height, width, 3), np.uint8), np.arange(2.0))
    if cost.tokens(planned_frames) + new_tokens > context(outline.text_config)[0]:
        clip = read_clip()
        check_context(
            outline.text_config,
            frames=len(clip.frames),
            visual_tokens=len(outline.frame_of_tokens(clip.frames, clip.pts_seconds)),
            text_tokens=0,
            new_tokens=new_tokens,
        )


def planned_frames(info: VideoInfo, sampling: Sampling, default: int) -> int:
    """The most frames that `sampling` takes of a video."""
    if sampling.fps is not None and sampling.frames is None:
        end = info.duration_seconds if sampling.end is None else min(sampling.end, info.duration_seconds)
        return int(sampling.fps * max(0.0, end - (sampling.start or 0.0))) + 1
    asked = sampling.frames or default
    return asked if info.frame_count is None else min(asked, info.frame_count)


def within_token_limit(model: VideoModel, clip: Clip, limit: int | None) -> Clip:
    """The clip, or as many of its frames, evenly spread, as have no more visual tokens than the limit.

    Raises:
        WqError: Not even one frame has.
    """
    if limit is None:
        return clip
    cost = sizing.VisualCost.of(model, clip.frames[:2], clip.pts_seconds[:2])
    fits = cost.frames(limit)
    if fits < 1:
        raise WqError(
            f"one frame has {cost.tokens(1)} visual tokens, more than {limit}",
            "lift the limit with `--max-visual-tokens`",
        )
    if fits >= len(clip.frames):
        return clip
    notice = f"{fits} of {len(clip.frames)} frames are used: more have over {limit:,} visual tokens"
    return clip.thinned(fits, f"{notice} (`--max-visual-tokens`)")
