"""A small random checkpoint of each family that takes frames one by one: the real classes, the templates of the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

SIDE = 28  # of a picture in pixels
PATCH = 7

VICUNA = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}"
    "{% for part in message['content'] if part['type'] in ('image', 'video') %}<{{ part['type'] }}>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
MISTRAL = (
    "{% for message in messages %}[INST] "
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %} [/INST]{% endfor %}"
)
INTERNVL = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] %}{% if part['type'] == 'video' %}<video>\n{% elif part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(*special: str, eos: str = "</s>", bos: str | None = None, named: dict[str, str] | None = None):
    """A token for every byte, so that newlines, times and colons between frames count.

    Args:
        special: More special tokens.
        eos: Ends an answer.
        bos: Put before every text, as Llama's tokenizer does.
        named: Attributes of the tokenizer that name a special token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = list(dict.fromkeys(["<pad>", eos, *([bos] if bos else []), *special]))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate([*names, *alphabet])}, []))
    backend.add_special_tokens(names)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, names.index(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token=eos, bos_token=bos, extra_special_tokens=named or {}
    )


def text_config(name: str, words, **more):
    """Three layers of a language model, two query heads for each of two KV heads."""
    import transformers

    return getattr(transformers, name)(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, **more,
    )  # fmt: skip


def clip_tower():
    """CLIP: a class token before the patches."""
    from transformers import CLIPVisionConfig

    return CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, image_size=SIDE,
        patch_size=PATCH, projection_dim=32,
    )  # fmt: skip


def siglip_tower():
    """SigLIP: patches alone."""
    from transformers import SiglipVisionConfig

    return SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, image_size=SIDE,
        patch_size=PATCH,
    )  # fmt: skip


def save(folder: Path, model_class: str, config, processor, words) -> Path:
    """Random weights, larger than the usual start, so that attention is peaked and logits are apart."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, model_class)(config)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data.normal_(std=0.3)
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def llava(folder: Path, **changes) -> Path:
    from transformers import CLIPImageProcessor, LlavaConfig, LlavaProcessor

    words = byte_tokenizer("<image>", bos="<s>")
    parts = {"vision_config": clip_tower(), "text_config": text_config("LlamaConfig", words), **changes}
    config = LlavaConfig(**parts, image_seq_length=16, image_token_index=words.convert_tokens_to_ids("<image>"))
    pictures = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    strategy = config.vision_feature_select_strategy
    processor = LlavaProcessor(
        pictures, words, patch_size=PATCH, vision_feature_select_strategy=strategy,
        num_additional_image_tokens=int(strategy == "default"), chat_template=VICUNA,
    )  # fmt: skip
    return save(folder, "LlavaForConditionalGeneration", config, processor, words)


def llava_next(folder: Path, *, template: str = VICUNA, text: str = "LlamaConfig", **text_changes) -> Path:
    from transformers import LlavaNextConfig, LlavaNextImageProcessor, LlavaNextProcessor

    words = byte_tokenizer("<image>", bos="<s>")
    grid = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
    config = LlavaNextConfig(
        vision_config=clip_tower(), text_config=text_config(text, words, **text_changes), image_grid_pinpoints=grid,
        image_token_index=words.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    pictures = LlavaNextImageProcessor(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}, image_grid_pinpoints=grid
    )
    processor = LlavaNextProcessor(
        pictures, words, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=template,
    )  # fmt: skip
    return save(folder, "LlavaNextForConditionalGeneration", config, processor, words)


def llava_next_mistral(folder: Path, *, sliding_window: int | None = None) -> Path:
    return llava_next(folder, template=MISTRAL, text="MistralConfig", sliding_window=sliding_window)


def llava_next_video(folder: Path) -> Path:
    from transformers import (
        LlavaNextImageProcessor,
        LlavaNextVideoConfig,
        LlavaNextVideoProcessor,
        LlavaNextVideoVideoProcessor,
    )

    words = byte_tokenizer("<image>", "<video>", bos="<s>")
    config = LlavaNextVideoConfig(
        vision_config=clip_tower(), text_config=text_config("LlamaConfig", words),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        video_token_index=words.convert_tokens_to_ids("<video>"), image_grid_pinpoints=[[SIDE, SIDE]],
    )  # fmt: skip
    size = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    processor = LlavaNextVideoProcessor(
        LlavaNextVideoVideoProcessor(**size), LlavaNextImageProcessor(**size, image_grid_pinpoints=[[SIDE, SIDE]]),
        words, patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=VICUNA,
    )  # fmt: skip
    return save(folder, "LlavaNextVideoForConditionalGeneration", config, processor, words)


def internvl(folder: Path, *, text: str = "Qwen2Config", **text_changes) -> Path:
    from transformers import (
        GotOcr2ImageProcessor,
        InternVLConfig,
        InternVLProcessor,
        InternVLVideoProcessor,
        InternVLVisionConfig,
    )

    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
             "video_token": "<video>"}  # fmt: skip
    words = byte_tokenizer("<|im_start|>", *named.values(), eos="<|im_end|>", named=named)
    config = InternVLConfig(
        vision_config=InternVLVisionConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
            image_size=[SIDE, SIDE], patch_size=[PATCH, PATCH],
        ),
        text_config=text_config(text, words, **text_changes), image_token_id=words.context_image_token_id,
        image_seq_length=4,
    )  # fmt: skip
    size = {"height": SIDE, "width": SIDE}
    processor = InternVLProcessor(
        GotOcr2ImageProcessor(size=size), words, InternVLVideoProcessor(size=size), image_seq_length=4,
        chat_template=INTERNVL,
    )  # fmt: skip
    return save(folder, "InternVLForConditionalGeneration", config, processor, words)


def smolvlm(folder: Path) -> Path:
    from transformers import (
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
        SmolVLMVisionConfig,
    )
    from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE

    # The token that starts a text is the one that starts a turn; this tokenizer adds it, so that a second one shows.
    words = byte_tokenizer(
        "<image>", "<fake_token_around_image>", "<global-img>", "<video>", bos="<|im_start|>", eos="<end_of_utterance>"
    )
    config = SmolVLMConfig(
        vision_config=SmolVLMVisionConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
            patch_size=PATCH,
        ),
        text_config=text_config("LlamaConfig", words), image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )  # fmt: skip
    limits = {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}
    videos = SmolVLMVideoProcessor(
        **limits, video_sampling={"fps": 1, "max_frames": 64, "video_size": {"longest_edge": SIDE}}
    )
    processor = SmolVLMProcessor(
        SmolVLMImageProcessor(**limits), words, videos, image_seq_len=4, chat_template=DEFAULT_CHAT_TEMPLATE
    )
    return save(folder, "SmolVLMForConditionalGeneration", config, processor, words)


MAKERS: dict[str, Callable[[Path], Path]] = {
    "internvl": internvl,
    "llava": llava,
    "llava_next-vicuna": llava_next,
    "llava_next-mistral": llava_next_mistral,
    "llava_next_video": llava_next_video,
    "smolvlm": smolvlm,
}
