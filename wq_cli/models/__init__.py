"""VLM families by `model_type`. A family is one file of this folder and one line here (CONTRIBUTING.md)."""

from __future__ import annotations

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


def family_of(model_type: str) -> tuple[str, str, str]:
    """(module, adapter, transformers class) of a `model_type`.

    Raises:
        ModelError: No adapter for it.
    """
    if model_type not in FAMILIES:
        raise ModelError(f"models of type `{model_type}` are not supported", f"supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
