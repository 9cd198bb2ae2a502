"""A profile's architecture with random weights: right for speed and memory, meaningless as an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from wq_cli.errors import ProfileError
from wq_cli.models import family_of, loading
from wq_cli.models.base import Prompt, VisualFeatures

if TYPE_CHECKING:
    from wq_cli.config import Settings
    from wq_cli.models.base import VideoModel
    from wq_cli.profile import Profile

# Tokens of the chat template before the video, and of template and question after it.
TOKENS_BEFORE, TOKENS_AFTER = 14, 24


def build(profile: Profile, settings: Settings) -> VideoModel:
    """The model, without its tokenizer.

    Raises:
        ProfileError: The profile does not say what to build.
    """
    import transformers

    if profile.architecture is None or profile.model_type is None:
        raise ProfileError(
            f"profile `{profile.name}` has no `architecture` to fill with random weights",
            "take `--profile llava-onevision-0.5b` or `llava-onevision-7b`",
        )
    device = loading.choose_device(settings.runtime.device)
    dtype = loading.choose_dtype(settings.runtime.dtype, device, torch.bfloat16)
    module, adapter, model_class = family_of(profile.model_type)
    config = transformers.AutoConfig.for_model(profile.model_type, **profile.architecture)
    torch.manual_seed(0)
    with torch.device(device):
        model = getattr(transformers, model_class)._from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.generation_config.eos_token_id = None
    size = {"height": config.vision_config.image_size, "width": config.vision_config.image_size}
    processor = getattr(transformers, model_class.replace("ForConditionalGeneration", "VideoProcessor"))(size=size)
    return loading.wrap(module, adapter, model.eval(), _FramesOnly(processor))


class _FramesOnly:
    """A processor for frames alone: random weights have no words."""

    def __init__(self, video_processor: object) -> None:
        self.video_processor = video_processor


@torch.inference_mode()
def prompt(model: VideoModel, visual: VisualFeatures) -> Prompt:
    """Random words round a clip, as many as a short question has."""
    generator = torch.Generator().manual_seed(0)
    count = TOKENS_BEFORE + TOKENS_AFTER
    ids = torch.randint(model.text_config.vocab_size, (count,), generator=generator).to(model.device)
    words = model.embed(ids)
    before, after = words.split([TOKENS_BEFORE, TOKENS_AFTER])
    embeds = torch.cat([before, visual.embeds.to(words.dtype), after])
    mask = torch.zeros(len(embeds), dtype=torch.bool, device=model.device)
    mask[TOKENS_BEFORE : TOKENS_BEFORE + len(visual.embeds)] = True
    return Prompt(embeds, mask, after, model.positions(mask, visual), visual.deepstack)
