"""Families that take frames one by one, against transformers' own processor, forward and generate."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import MAKERS, internvl, llava, llava_next_mistral, siglip_tower
from transformers import LlamaConfig, MistralConfig
from transformers.video_utils import VideoMetadata

from wq_cli import decoding, engine, room
from wq_cli.bench import random_weights
from wq_cli.config import Generation, Quantization, Runtime, Settings
from wq_cli.errors import ModelError, WqError
from wq_cli.models import FAMILIES, loading, sizing
from wq_cli.models.base import Prompt, VideoModel
from wq_cli.profile import Profile

QUESTION = "what happens in the video?"
QUESTIONS = [QUESTION, "a dog?"]
SECONDS_PER_FRAME = 4.0
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=list(MAKERS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    return loading.load(str(MAKERS[request.param](tmp_path_factory.mktemp("model"))), CPU, "auto")


def noise(count: int, height: int = 40, width: int = 52) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def prompt_of(model: VideoModel, frames: np.ndarray, question: str = QUESTION) -> Prompt:
    return model.prompt(question, model.encode(frames, np.arange(len(frames)) * SECONDS_PER_FRAME))


@dataclass(frozen=True)
class Reference:
    """What transformers makes of frames and questions.

    Attributes:
        ids: Prompts, padded on the left, int64 [B, L].
        inputs: What `generate` is given.
    """

    ids: torch.Tensor
    inputs: dict[str, Any]

    @classmethod
    def of(cls, model: VideoModel, frames: np.ndarray, *questions: str) -> Reference:
        as_images = model.model_type in ("llava", "llava_next")
        visual = [{"type": "image"}] * len(frames) if as_images else [{"type": "video"}]
        texts = [
            model.processor.apply_chat_template(
                [{"role": "user", "content": [*visual, {"type": "text", "text": question}]}],
                add_generation_prompt=True,
                tokenize=False,
            )
            for question in questions
        ]
        bos = model.processor.tokenizer.bos_token
        how = {"return_tensors": "pt", "padding": True, "padding_side": "left"}
        how["add_special_tokens"] = not (bos and texts[0].startswith(bos))  # as the processor tokenizes its templates
        if model.model_type == "llava_next":
            return cls._untiled(model, frames, texts, how)
        if as_images:
            how["images"] = [list(frames)] * len(texts)
        else:
            times = VideoMetadata(
                total_num_frames=len(frames), fps=1 / SECONDS_PER_FRAME, frames_indices=list(range(len(frames)))
            )
            how |= {"videos": [frames] * len(texts), "do_sample_frames": False}
            if model.model_type == "smolvlm":
                # 5.17 counts the videos of each text.
                how |= {"videos": [[frames]] * len(texts), "video_metadata": [times] * len(texts)}
        inputs = model.processor(text=texts, **how)
        return cls(inputs["input_ids"], dict(inputs))

    @classmethod
    def _untiled(cls, model: VideoModel, frames: np.ndarray, texts: list[str], how: dict[str, Any]) -> Reference:
        """LLaVA-1.6 without tiles: of what transformers makes of each image, the whole picture, which comes first."""
        inner, word = model.model.model, model.processor.image_token
        pictures = model.processor.image_processor(list(frames), return_tensors="pt")
        with torch.inference_mode():
            tiled = inner.get_image_features(pictures["pixel_values"], pictures["image_sizes"]).pooler_output
        side = model.model.config.vision_config.image_size // model.model.config.vision_config.patch_size
        tokens = torch.cat([torch.cat([image[: side**2], inner.image_newline[None]]) for image in tiled])
        texts = [text.replace(word, word * (side**2 + 1)) for text in texts]
        inputs = model.processor.tokenizer(texts, **how)
        ids = inputs["input_ids"]
        with torch.inference_mode():
            embeds = model.embed(ids)
            embeds[ids == model.video_token_id] = tokens.repeat(len(texts), 1)
        return cls(ids, {"inputs_embeds": embeds, "attention_mask": inputs["attention_mask"]})

    def generate(self, model: VideoModel, tokens: int) -> list[list[int]]:
        output = model.model.generate(**self.inputs, do_sample=False, repetition_penalty=1.0, max_new_tokens=tokens)
        return output[:, self.ids.shape[1] if "input_ids" in self.inputs else 0 :].tolist()


def prefilled(model: VideoModel, prompts: list[Prompt], settings: Quantization, **how) -> engine.Prefilled:
    return engine.prefill(model, engine.prepare(model, prompts, settings, room=64, **how))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
@pytest.mark.parametrize(("height", "width"), [(40, 52), (57, 31)])
def test_visual_tokens_are_the_processors_placeholders(model: VideoModel, count: int, height: int, width: int) -> None:
    frames = noise(count, height, width)
    visual = model.encode(frames, np.arange(count) * SECONDS_PER_FRAME)
    ids = model.prompt_ids(QUESTION, visual)
    assert ids.tolist() == Reference.of(model, frames, QUESTION).ids[0].tolist()
    mask = model.prompt(QUESTION, visual).visual_mask
    assert torch.equal(mask, ids == model.video_token_id)
    per_frame = len(visual.embeds) // count
    assert visual.frames.tolist() == np.repeat(np.arange(count), per_frame).tolist()


def test_text_stands_between_the_frames(model: VideoModel) -> None:
    """One run of visual tokens a frame, but for the family that joins them; what is between is no visual token."""
    mask = prompt_of(model, noise(7)).visual_mask.int()
    runs = int((mask.diff(prepend=mask.new_zeros(1)) == 1).sum())
    assert runs == (1 if model.model_type == "llava_next_video" else 7)


@pytest.mark.parametrize(("count", "height", "width"), [(1, 57, 31), (11, 40, 52)])
def test_embeddings_are_those_of_the_model(model: VideoModel, count: int, height: int, width: int) -> None:
    frames = noise(count, height, width)
    seen: dict[str, torch.Tensor] = {}
    hook = model.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(embeds=kwargs["inputs_embeds"]), with_kwargs=True
    )
    with torch.inference_mode():
        model.model(**Reference.of(model, frames, QUESTION).inputs)
    hook.remove()
    assert torch.allclose(prompt_of(model, frames).embeds, seen["embeds"][0], atol=1e-5)


@pytest.mark.parametrize("questions", [[QUESTION], QUESTIONS], ids=["one", "two, padded"])
def test_full_precision_gives_generates_tokens(model: VideoModel, questions: list[str]) -> None:
    frames = noise(5)
    expected = Reference.of(model, frames, *questions).generate(model, 16)
    prompts = [prompt_of(model, frames, question) for question in questions]
    state = prefilled(model, prompts, Quantization(policy="fp16", window=8))
    steps = list(decoding.decode(model, state, Generation(max_new_tokens=16)))
    for row, want in zip(torch.stack(steps, dim=1).tolist(), expected, strict=True):
        until = next((i + 1 for i, token in enumerate(want) if token in model.eos_ids), len(want))
        assert row[:until] == want[:until]
    assert len({token for row in expected for token in row}) > 5, "an answer of one word would prove little"


@pytest.mark.parametrize("policy", ["windowquant", "rtn4", "rtn2"])
def test_packed_attention_is_that_over_dequantized_tensors(model: VideoModel, policy: str) -> None:
    """Two padded rows, some tokens after the prompt: our attention against the model's own over `dequantized`."""
    prompts = [prompt_of(model, noise(5), question) for question in QUESTIONS]
    settings = Quantization(policy=policy, window=8)
    words = model.embed(torch.tensor([[20, 21, 22], [30, 31, 32]]))
    state = prefilled(model, prompts, settings)
    assert any(layer.segments for layer in state.cache.layers)
    position = state.position
    packed = engine.extend(model, state, words, last_only=False)

    state = prefilled(model, prompts, settings)
    padding = torch.cat([state.cache.visual.padding, torch.ones(2, 3, dtype=torch.bool)], dim=1)
    with torch.inference_mode():
        output = model.decoder(
            inputs_embeds=words,
            position_ids=position[:, None] + torch.arange(3),
            attention_mask=padding,
            past_key_values=state.cache,
        )
        expected = model.logits(output.last_hidden_state)
    assert torch.allclose(packed, expected, atol=1e-3, rtol=1e-4)


def test_questions_after_the_cache_have_the_tokens_of_generate(model: VideoModel) -> None:
    """A first and a second question through one cache, which holds all text up to the last visual token."""
    prompts = [prompt_of(model, noise(5), question) for question in QUESTIONS]
    state = prefilled(model, prompts[:1], Quantization("fp16", window=8), until_visual_end=True)
    for question, prompt in zip(QUESTIONS, prompts, strict=True):
        rest = prompt.embeds[None, prompt.visual_end :]
        state.logits = engine.extend(model, state, rest)
        answer = torch.stack(list(decoding.decode(model, state, Generation(max_new_tokens=8))), dim=1).tolist()
        expected = Reference.of(model, noise(5), question).generate(model, 8)
        assert answer == expected
        engine.rewind(state, rest.shape[1] + len(answer[0]) - 1)


def test_one_layer_at_a_time_holds_full_precision(model: VideoModel) -> None:
    request = engine.prepare(model, [prompt_of(model, noise(5))], Quantization("rtn2", window=8), room=8)
    cache, held, hooks = request.cache, [], []
    for layer in model.decoder.layers:
        hooks.append(
            layer.self_attn.o_proj.register_forward_pre_hook(
                lambda *_: held.append(sum(c.keys is not None for c in cache.layers))
            )
        )
    engine.prefill(model, request)
    for hook in hooks:
        hook.remove()
    assert held == [1] * len(cache.layers)
    assert all(layer.keys is None for layer in cache.layers)


def test_a_text_starts_once(model: VideoModel) -> None:
    """Llama's tokenizer adds `<s>`; SmolVLM's template brings what starts a text."""
    ids = model.prompt_ids(QUESTION, model.encode(noise(2), np.arange(2.0))).tolist()
    bos = model.processor.tokenizer.bos_token_id
    assert bos is None or (ids[0] == bos and ids.count(bos) == 1)


def test_placeholder_in_a_question_is_refused(model: VideoModel) -> None:
    token = model.processor.tokenizer.decode([model.video_token_id])
    with pytest.raises(WqError, match="which stands for the video"):
        prompt_of(model, noise(2), f"what is {token}?")


def test_a_template_without_a_place_for_the_clip(model: VideoModel) -> None:
    visual = model.encode(noise(2), np.arange(2.0))
    processor, template = model.processor, "{{ messages[0]['role'] }}"

    class Other:
        def apply_chat_template(self, conversation: object, **how: object) -> str:
            return str(processor.apply_chat_template(conversation, chat_template=template, **how))

        def __getattr__(self, name: str) -> object:
            return getattr(processor, name)

    other = type(model)(model.model, Other())
    with pytest.raises(ModelError, match="has no place for"):
        other.prompt_ids(QUESTION, visual)


def test_cost_of_a_frame_is_known_without_weights(model: VideoModel) -> None:
    frames, times = noise(2, 57, 31), np.arange(2.0)
    outline = sizing.outline(model.model.config, model.processor)
    assert outline.model.device.type == "meta"
    assert outline.frame_of_tokens(frames, times).tolist() == model.encode(frames, times).frames.tolist()


@pytest.mark.parametrize("tower", ["clip", "siglip"])
@pytest.mark.parametrize("layers", [-1, -2, [-3, -1]])
def test_layers_of_the_tower_are_those_of_the_config(tmp_path: Path, tower: str, layers: int | list[int]) -> None:
    """LLaVA with the class token left out, and with a SigLIP tower, which has none."""
    changes: dict[str, Any] = {"vision_feature_layer": layers}
    if tower == "siglip":
        changes |= {"vision_config": siglip_tower(), "vision_feature_select_strategy": "full"}
    model = loading.load(str(llava(tmp_path, **changes)), CPU, "auto")
    prompt = prompt_of(model, noise(3))
    inputs = Reference.of(model, noise(3), QUESTION).inputs
    with torch.inference_mode():
        expected = model.model(**inputs).logits
        assert torch.allclose(model.model(inputs_embeds=prompt.embeds[None]).logits, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("LlamaConfig", {"head_dim": 32}),
        ("Qwen3Config", {"head_dim": 32}),
        ("Qwen3MoeConfig", {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
    ],
)
def test_language_models_of_later_internvl(tmp_path: Path, text: str, changes: dict[str, int]) -> None:
    model = loading.load(str(internvl(tmp_path, text=text, **changes)), CPU, "auto")
    expected = Reference.of(model, noise(5), QUESTION).generate(model, 16)
    state = prefilled(model, [prompt_of(model, noise(5))], Quantization("fp16", window=8))
    answer = torch.stack(list(decoding.decode(model, state, Generation(max_new_tokens=16))), dim=1).tolist()
    assert answer == [expected[0][: len(answer[0])]]


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("text_config", "gemma2"),  # caps its attention scores
        ("text_config", "gpt_oss"),  # attends to sinks
        ("text_config", "qwen3_next"),  # most layers keep no keys
        ("vision_config", "pixtral"),  # as many tokens as a picture has patches, with breaks between rows
    ],
)
def test_parts_that_would_be_run_wrongly_are_refused(tmp_path: Path, part: str, other: str) -> None:
    folder = llava(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, part: {"model_type": other}}))
    with pytest.raises(ModelError, match=f"`llava` over `{other}` is not supported"):
        loading.load(str(folder), CPU, "auto")


def test_heads_that_cannot_be_packed_are_refused(tmp_path: Path) -> None:
    folder = llava(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["head_dim"] = 40
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="attention heads of 40 channels are not supported"):
        loading.load(str(folder), CPU, "auto")


@pytest.mark.parametrize("described", [{"model_type": "bert"}, {"model_type": "internvl_chat"}, {"model_type": "new"}])
def test_unknown_types_of_model_are_told_the_known_ones(tmp_path: Path, described: dict[str, Any]) -> None:
    """Types that transformers knows, those with code of their own, and those it has never heard of."""
    if described["model_type"] == "internvl_chat":
        described = {**described, "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(ModelError, match=f"models of type `{described['model_type']}` are not supported") as caught:
        loading.load(str(tmp_path), CPU, "auto")
    assert caught.value.hint == f"supported: {', '.join(FAMILIES)}"
    assert {name.split("-")[0] for name in MAKERS} <= set(FAMILIES)


def test_layers_with_a_sliding_window_are_refused_once_they_matter(tmp_path: Path) -> None:
    """Mistral 7B 0.1 looks back 4,096 tokens; windows that were reordered have no order to look back in."""
    model = loading.load(str(llava_next_mistral(tmp_path, sliding_window=130)), CPU, "auto")
    short = noise(4)
    expected = Reference.of(model, short, "a dog?").generate(model, 8)
    state = prefilled(model, [prompt_of(model, short, "a dog?")], Quantization("fp16", window=8))
    assert torch.stack(list(decoding.decode(model, state, Generation(max_new_tokens=8))), dim=1).tolist() == expected
    room = 130 - state.cache.layers[0].length
    assert decoding.obstacle(model, state.cache, room) == "step by step, on cpu"
    assert "the last 130 tokens only" in (decoding.obstacle(model, state.cache, room + 1) or "")
    with pytest.raises(ModelError, match="last 130 tokens"):
        state = prefilled(model, [prompt_of(model, noise(9))], Quantization(window=8))
        list(decoding.decode(model, state, Generation(max_new_tokens=8)))


def test_a_run_over_random_weights(model: VideoModel) -> None:
    """What `--random-weights` builds from a profile: as many visual tokens and as many stretches of text between."""
    config = model.model.config
    part = model.processor.image_processor if model.content_type == "image" else model.processor.video_processor
    settings = part.to_dict()
    sizes = {name: settings[name] for name in ("size", "crop_size", "max_image_size") if settings.get(name)}
    architecture = {
        "text_config": config.text_config.to_dict(),
        "vision_config": config.vision_config.to_dict(),
        "frame_processor": {"class": type(part).__name__, **sizes},
    }
    made = Profile(Path("tiny.yaml"), "tiny", "", "tiny", model_type=model.model_type, architecture=architecture)
    random = random_weights.build(made, Settings(runtime=Runtime(device="cpu")))
    prompt = random_weights.prompt(random, random.encode(noise(9), np.arange(9.0)))
    real = prompt_of(model, noise(9))
    assert prompt.visual_mask.sum() == real.visual_mask.sum()
    assert prompt.visual_mask.diff().sum() == real.visual_mask.diff().sum()
    state = engine.prefill(random, engine.prepare(random, [prompt], Quantization(window=8), room=4))
    assert len(list(decoding.decode(random, state, Generation(max_new_tokens=4)))) == 4


@pytest.mark.parametrize(
    ("config", "reason", "fits"),
    [
        # By hand: (4096 - 64 - 36) // 576 pictures of 576 tokens.
        (LlamaConfig(max_position_embeddings=4096), "the model has 4096 positions", 6),
        (MistralConfig(max_position_embeddings=32768, sliding_window=4096), "see the last 4096 only", 6),
        (MistralConfig(max_position_embeddings=8192, sliding_window=None), "the model has 8192 positions", 14),
    ],
)
def test_more_frames_than_a_model_was_made_for_are_refused(config: Any, reason: str, fits: int) -> None:
    def check(frames: int) -> None:
        room.check_context(config, frames=frames, visual_tokens=576 * frames, text_tokens=36, new_tokens=64)

    check(fits)
    with pytest.raises(WqError, match=reason) as caught:
        check(fits + 1)
    assert caught.value.hint == f"`--frames {fits}` fits"
