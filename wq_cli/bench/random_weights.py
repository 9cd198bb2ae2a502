"""A profile's architecture with random weights: right for speed and memory, meaningless as an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli.errors import ProfileError, UsageError
from wq_cli.models import family_of, loading
from wq_cli.models.base import Prompt, VisualFeatures

if TYPE_CHECKING:
    from wq_cli.config import Settings
    from wq_cli.models.base import VideoModel
    from wq_cli.profile import Profile

# Tokens of the chat template before the video, and of template and question after it.
TOKENS_BEFORE, TOKENS_AFTER = 14, 24

# Parts of a LLaVA-OneVision that runs anywhere.
TINY: dict[str, dict[str, Any]] = {
    "text_config": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "intermediate_size": 128,
    },
    "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "image_size": 126},
    "frame_processor": {"size": {"height": 126, "width": 126}},
}


def tiny(profile: Profile) -> Profile:
    """The profile of a LLaVA-OneVision with two small layers: that a benchmark runs, not what it shows."""
    assert profile.architecture is not None
    parts = {name: {**profile.architecture[name], **sizes} for name, sizes in TINY.items()}
    return replace(profile, architecture={**profile.architecture, **parts})


def build(profile: Profile, settings: Settings) -> VideoModel:
    """The model, without its tokenizer.

    Raises:
        ProfileError: The profile does not say what to build.
        UsageError: An option that random weights do not follow.
    """
    import transformers

    if profile.architecture is None or profile.model_type is None:
        raise ProfileError(
            f"profile `{profile.name}` has no `architecture` to fill with random weights",
            "take `--profile llava-onevision-0.5b` or `llava-onevision-7b`",
        )
    if settings.runtime.weights != "full" or settings.runtime.device == loading.MULTI:
        raise UsageError("`--random-weights` makes full weights on one device", "leave `--weights` and `multi` away")
    device = loading.choose_device(settings.runtime.device)
    dtype = loading.choose_dtype(settings.runtime.dtype, device, torch.bfloat16)
    module, adapter, model_class = family_of(profile.model_type)
    parts = dict(profile.architecture)
    frames = dict(parts.pop("frame_processor"))
    tied = parts["text_config"].get("tie_word_embeddings", False)
    config = transformers.AutoConfig.for_model(profile.model_type, tie_word_embeddings=tied, **parts)
    torch.manual_seed(0)
    with torch.device(device):
        model = getattr(transformers, model_class)._from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    frame_processor = getattr(transformers, frames.pop("class"))(**frames)
    return loading.wrap(module, adapter, model.eval(), _FramesOnly(frame_processor))


class _FramesOnly:
    """A processor for frames alone: random weights have no words."""

    def __init__(self, frame_processor: object) -> None:
        self.video_processor = self.image_processor = frame_processor


@torch.inference_mode()
def prompt(model: VideoModel, visual: VisualFeatures) -> Prompt:
    """Random words round a clip, as many as a short question has, and between its frames where the family has some."""
    later_frames = np.flatnonzero(np.diff(visual.frames)) + 1
    clip = np.insert(np.ones(len(visual.frames), dtype=bool), np.repeat(later_frames, model.words_between), False)
    mask = torch.from_numpy(np.pad(clip, (TOKENS_BEFORE, TOKENS_AFTER))).to(model.device)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.text_config.vocab_size, (len(mask),), generator=generator).to(model.device)
    embeds = model.embed(ids)
    question = embeds[-TOKENS_AFTER:].clone()
    embeds[mask] = visual.embeds.to(embeds.dtype)
    return Prompt(embeds, mask, question, model.positions(mask, visual), visual.deepstack)
