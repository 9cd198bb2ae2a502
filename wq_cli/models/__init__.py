"""VLM families by `model_type`. A family is one file of this folder and one line here (CONTRIBUTING.md)."""

from __future__ import annotations

# model_type: (module of this package, adapter, transformers class)
FAMILIES = {
    "llava_onevision": ("llava_onevision", "LlavaOnevision", "LlavaOnevisionForConditionalGeneration"),
}
