"""The demo model: a small LLaVA-OneVision, its word-level tokenizer and its processor, as transformers saves them."""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2Config,
    SiglipVisionConfig,
)
from transformers.utils import is_torchvision_available
from transformers.utils.logging import disable_progress_bar

from wq_cli.scenes import WEIGHTS
from wq_cli.scenes.words import vocabulary

IMAGE_SIZE = 64
PATCH_SIZE = 8
TOKENS_PER_FRAME = (IMAGE_SIZE // PATCH_SIZE // 2) ** 2
MAX_BYTES = 16 * 2**20
MEAN = STD = 0.5

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'video' %}<video>{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token per lower-case word or punctuation mark."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = {word: index for index, word in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # joins words, no space before punctuation
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<image>", "<video>"],
        model_max_length=8192,
    )


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Any:
    """A `LlavaOnevisionProcessor` that squashes frames to a square of `IMAGE_SIZE` pixels; needs torchvision."""
    from transformers import LlavaOnevisionImageProcessor, LlavaOnevisionProcessor, LlavaOnevisionVideoProcessor

    shared: dict[str, Any] = {
        "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        "image_mean": [MEAN] * 3,
        "image_std": [STD] * 3,
    }
    return LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(**shared, image_grid_pinpoints=[[IMAGE_SIZE, IMAGE_SIZE]]),
        video_processor=LlavaOnevisionVideoProcessor(**shared),
        tokenizer=tokenizer,
        num_image_tokens=(IMAGE_SIZE // PATCH_SIZE) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
    )


def build_config(tokenizer: PreTrainedTokenizerFast) -> LlavaOnevisionConfig:
    """Sizes chosen so that everything fits `MAX_BYTES` in fp16."""
    vision = SiglipVisionConfig(
        hidden_size=192,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=3,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        vision_use_head=False,
    )
    text = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.convert_tokens_to_ids("<|im_start|>"),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlavaOnevisionConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=[[IMAGE_SIZE, IMAGE_SIZE]],
        tie_word_embeddings=True,
    )


def build(seed: int) -> tuple[LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast]:
    """An untrained model (float32, CPU) and its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = LlavaOnevisionForConditionalGeneration(build_config(tokenizer))
    model.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=64,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model, tokenizer


def load(path: Path) -> tuple[LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast]:
    """A saved model (float32, CPU) and its tokenizer."""
    disable_progress_bar()
    model = LlavaOnevisionForConditionalGeneration.from_pretrained(path, dtype=torch.float32)
    return model, PreTrainedTokenizerFast.from_pretrained(path)


def save(
    model: LlavaOnevisionForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, path: Path, training: str
) -> None:
    """Writes fp16 weights, configurations and `training.json`; each file is complete or absent.

    Without torchvision the processor's own files are left out; `python -m wq_cli.scenes.model DIR` adds them elsewhere.

    Raises:
        ValueError: A weight is not finite, or all take more than `MAX_BYTES`.
    """
    disable_progress_bar()
    half = copy.deepcopy(model).to(device="cpu", dtype=torch.float16)
    if not all(bool(weight.isfinite().all()) for weight in half.parameters()):
        raise ValueError("a weight is not finite in fp16")
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path) as scratch:
        half.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        if is_torchvision_available():
            build_processor(tokenizer).save_pretrained(scratch)
        (Path(scratch) / "training.json").write_text(training)
        size = (Path(scratch) / "model.safetensors").stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"weights take {size} bytes, more than {MAX_BYTES}")
        for file in sorted(Path(scratch).iterdir()):
            file.chmod(0o644)  # safetensors keeps others from reading
            os.replace(file, path / file.name)


def visual_features(model: LlavaOnevisionForConditionalGeneration, frames: Tensor) -> Tensor:
    """Projected and pooled tokens of frames, as `get_video_features` gives them before the newline token.

    Its bilinear resize halves an even grid, which is exactly the mean of 2x2 blocks and far slower.

    Args:
        frames: [N, 3, IMAGE_SIZE, IMAGE_SIZE], normalised.

    Returns:
        [N, TOKENS_PER_FRAME, hidden].
    """
    tower = model.model.vision_tower
    hidden = tower.encoder(inputs_embeds=tower.embeddings(frames)).last_hidden_state  # LLaVA skips the last norm
    hidden = model.model.multi_modal_projector(hidden)
    side = IMAGE_SIZE // PATCH_SIZE // 2
    pooled: Tensor = hidden.view(len(frames), side, 2, side, 2, -1).mean(dim=(2, 4)).flatten(1, 2)
    return pooled


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Puts trained weights and their processor into the package.")
    parser.add_argument("trained", type=Path)
    source = parser.parse_args().trained
    save(*load(source), WEIGHTS, (source / "training.json").read_text())
