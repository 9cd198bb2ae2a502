"""Small random checkpoints of the real classes with their real processors, saved as a folder like those of the hub."""

from __future__ import annotations

from pathlib import Path

QUESTION_WORDS = "what happens is there a dog cat in the video when does it move left right up down how many"
WORDS = [*QUESTION_WORDS.split(), "?", ".", ",", "yes", "no"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} "
    "{% for part in message['content'] %}{% if part['type'] == 'video' %}<video>{% endif %}{% endfor %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %} {{ part['text'] }}{% endif %}{% endfor %}"
    "<|im_end|> {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def tokenizer():
    """Word-level, with the special tokens of the Qwen2 chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<pad>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"]
    vocabulary = {word: i for i, word in enumerate([*special, "user", "assistant", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", eos_token="<|im_end|>",
        additional_special_tokens=special[2:],
    )  # fmt: skip
    return made


def llava_onevision(folder: Path, *, layers: int = 3, heads: int = 4, kv_heads: int = 2, head_dim: int = 16) -> Path:
    """A LLaVA-OneVision of 28 pixels and 2 x 2 pooled tokens a frame."""
    import torch
    from transformers import (
        LlavaOnevisionConfig,
        LlavaOnevisionForConditionalGeneration,
        LlavaOnevisionImageProcessor,
        LlavaOnevisionProcessor,
        LlavaOnevisionVideoProcessor,
        Qwen2Config,
        SiglipVisionConfig,
    )

    torch.manual_seed(0)
    words = tokenizer()
    hidden = heads * head_dim
    config = LlavaOnevisionConfig(
        vision_config=SiglipVisionConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=28,
            patch_size=7,
        ),
        text_config=Qwen2Config(
            vocab_size=len(words), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=4096,
        ),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        video_token_id=words.convert_tokens_to_ids("<video>"),
        vision_feature_layer=-1, vision_feature_select_strategy="full", image_grid_pinpoints=[[28, 28]],
    )  # fmt: skip
    model = LlavaOnevisionForConditionalGeneration(config)
    for name, parameter in model.named_parameters():
        # Larger than the usual start, so that attention is peaked and logits are apart. Norms stay what they are:
        # random ones leave so little of the stream that the model says one word for ever.
        if "norm" not in name:
            parameter.data.normal_(std=0.5)
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    size = {"height": 28, "width": 28}
    processor = LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=[[28, 28]]), words,
        LlavaOnevisionVideoProcessor(size=size), num_image_tokens=16, vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
    )  # fmt: skip
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
