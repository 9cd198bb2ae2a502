"""VLM families by `model_type`. A family is one file of this folder and one line here (CONTRIBUTING.md)."""

from __future__ import annotations

from typing import Any

from wq_cli.errors import ModelError

# model_type: (module of this package, adapter, transformers class)
FAMILIES = {
    "llava_onevision": ("llava_onevision", "LlavaOnevision", "LlavaOnevisionForConditionalGeneration"),
    "internvl": ("internvl", "InternVL", "InternVLForConditionalGeneration"),
    "llava": ("llava", "Llava", "LlavaForConditionalGeneration"),
    "llava_next": ("llava_next", "LlavaNext", "LlavaNextForConditionalGeneration"),
    "llava_next_video": ("llava_next_video", "LlavaNextVideo", "LlavaNextVideoForConditionalGeneration"),
    "qwen2_vl": ("qwen_vl", "Qwen2VL", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": ("qwen_vl", "Qwen2_5_VL", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": ("qwen_vl", "Qwen3VL", "Qwen3VLForConditionalGeneration"),
    "smolvlm": ("smolvlm", "SmolVLM", "SmolVLMForConditionalGeneration"),
}

# What may stand inside a family that takes any language model and any tower. These language models have the plain
# attention that is packed here; others cap it, add sinks to it, share it or do without.
PARTS = {
    "text_config": ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe"),
    "vision_config": ("clip_vision_model", "siglip_vision_model"),
}

# Whole pairs of words at 2 bits, see `wq_kernels.layout`.
HEAD_MULTIPLE = 16


def family_of(model_type: str) -> tuple[str, str, str]:
    """(module, adapter, transformers class) of a `model_type`.

    Raises:
        ModelError: No adapter for it.
    """
    if model_type not in FAMILIES:
        raise ModelError(f"models of type `{model_type}` are not supported", f"supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def check_parts(config: Any) -> None:
    """Refuse a known family over a language model or a vision tower that would be run wrongly.

    Args:
        config: The transformers configuration. Parts that a family brings itself are named after it.

    Raises:
        ModelError: One of its parts is another, or its heads cannot be packed.
    """
    for part, known in PARTS.items():
        found = getattr(config, part).model_type
        if found not in known and not found.startswith(config.model_type):
            raise ModelError(f"`{config.model_type}` over `{found}` is not supported", f"supported: {', '.join(known)}")
    text = config.text_config
    dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    if dim % HEAD_MULTIPLE:
        raise ModelError(f"attention heads of {dim} channels are not supported", f"a multiple of {HEAD_MULTIPLE} is")
