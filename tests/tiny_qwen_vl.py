"""Small random checkpoints of the Qwen VL classes with their real processors, in a folder like those of the hub."""

from __future__ import annotations

from pathlib import Path

from tiny_models import WORDS

SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|image_pad|>", "<|video_pad|>"),
]
# The hub's template of these families, without the branches that no question takes.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PATCH, MERGE = 4, 2
# Least and most merged patches of a frame, for Qwen3-VL of the whole clip.
TOKENS = {"qwen2_vl": (6, 20), "qwen2_5_vl": (6, 20), "qwen3_vl": (24, 260)}


def tokenizer():
    """Word-level, digit by digit, so that time stamps can be told apart."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, "<unk>", "system", "user", "assistant", *WORDS, "<", ">", "seconds", *"0123456789"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=True)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<|endoftext|>", eos_token="<|im_end|>",
        additional_special_tokens=SPECIAL[1:],
    )  # fmt: skip


def configs(family: str, vocabulary: int, sliding_window: int | None = None):
    """(vision, text) settings of a family, in its own words."""
    hidden = 64
    text = {
        "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }  # fmt: skip
    vision = {"depth": 3, "num_heads": 2, "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 2}
    if family == "qwen3_vl":
        text |= {"head_dim": 16, "rope_parameters": text["rope_parameters"] | {"mrope_interleaved": True}}
        vision |= {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": hidden}
        vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0, 2]}
        return vision, text
    if sliding_window is not None:
        text |= {"use_sliding_window": True, "sliding_window": sliding_window, "max_window_layers": 2}
    if family == "qwen2_vl":
        return vision | {"embed_dim": 32, "hidden_size": hidden, "mlp_ratio": 2}, text
    vision |= {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": hidden}
    # Windows of 2 x 2 merged patches in all blocks but the last.
    return vision | {"window_size": 4 * PATCH, "fullatt_block_indexes": [2], "tokens_per_second": 2}, text


def qwen_vl(folder: Path, family: str, sliding_window: int | None = None) -> Path:
    """A checkpoint of `qwen2_vl`, `qwen2_5_vl` or `qwen3_vl` with patches of 4 pixels."""
    import torch
    import transformers

    torch.manual_seed(0)
    words = tokenizer()
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[family]
    vision, text = configs(family, len(words), sliding_window)
    tokens = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    ids = {f"{kind}_token_id": words.convert_tokens_to_ids(f"<|{token}|>") for kind, token in tokens.items()}
    config = getattr(transformers, f"{name}Config")(vision_config=vision, text_config=text, **ids)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    for parameter_name, parameter in model.named_parameters():
        # Large, for the reasons of tiny_models.llava_onevision; DeepStack has to show beside a wide stream.
        if "norm" not in parameter_name:
            spread = 2.0 if "deepstack" in parameter_name else 0.2 if "visual" in parameter_name else 0.5
            parameter.data.normal_(std=spread)
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    least, most = (count * (PATCH * MERGE) ** 2 for count in TOKENS[family])
    size = {"shortest_edge": least, "longest_edge": most}
    patches = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": 2, "size": size}
    images = transformers.Qwen2VLImageProcessor(**patches)
    videos = getattr(transformers, "Qwen3VLVideoProcessor" if family == "qwen3_vl" else "Qwen2VLVideoProcessor")
    processor = getattr(transformers, f"{name}Processor")(images, words, videos(**patches), chat_template=TEMPLATE)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
