"""The cache in other hands: all ways to generate, resets, crops, threads, budgets; and what it must refuse."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision
from transformers import AutoConfig, DynamicCache

from wq_cli import decoding, engine, policies
from wq_cli.bench.scoring import Scorer
from wq_cli.cache import VisualTokens, WindowCache
from wq_cli.codecs import ChannelInWindow
from wq_cli.config import Generation, Quantization
from wq_cli.errors import ModelError, WqError
from wq_cli.models import loading
from wq_cli.models.base import Prompt, VideoModel

QUESTIONS = ["what happens in the video ?", "is there a dog ?", "what ?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava_onevision(tmp_path_factory.mktemp("onevision"))


@pytest.fixture(scope="module")
def model(folder: Path) -> VideoModel:
    return loading.load(str(folder), torch.device("cpu"), "auto")


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (37, 40, 52, 3), dtype=np.uint8)


def inputs_of(model: VideoModel, frames: np.ndarray, *questions: str):
    """What transformers' processor makes of a clip and some questions about it, padded on the left."""
    model.processor.tokenizer.padding_side = "left"
    text = [
        model.processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for question in questions
    ]
    videos = [list(frames)] * len(text)
    return model.processor(text=text, videos=videos, do_sample_frames=False, return_tensors="pt", padding=True)


def library_cache(model: VideoModel, inputs, bits: int, *, tell_padding: bool = True) -> WindowCache:
    policy = policies.create(Quantization(policy="fp16" if bits == 16 else f"rtn{bits}", window=8))
    padding = inputs["attention_mask"].bool() if tell_padding else None
    visual = VisualTokens.from_mask(inputs["input_ids"] == model.video_token_id, 8, padding)
    nothing = np.full((1, visual.windows), np.nan)
    return WindowCache(
        model.text_config, visual, ChannelInWindow(8), planner=lambda layer: policy.plan_layer(layer, nothing, None)
    )


def generated(model: VideoModel, inputs, cache: object = None, tokens: int = 12, **how) -> list[list[int]]:
    how = {"do_sample": False, "suppress_tokens": [model.video_token_id], "past_key_values": cache, **how}
    output = model.model.generate(**inputs, max_new_tokens=tokens, **how)
    return output[:, inputs["input_ids"].shape[1] :].tolist()


def prompt_of(model: VideoModel, frames: np.ndarray, question: str = QUESTIONS[0]) -> Prompt:
    return model.prompt(question, model.encode(frames, np.arange(len(frames)) / 2.0))


def prefilled(
    model: VideoModel, prompts: list[Prompt], settings: Quantization, room: int = 8, **how
) -> engine.Prefilled:
    return engine.prefill(model, engine.prepare(model, prompts, settings, room=room, **how))


def answer(model: VideoModel, state: engine.Prefilled, tokens: int = 8, **how) -> list[list[int]]:
    return torch.stack(list(decoding.decode(model, state, Generation(max_new_tokens=tokens), **how)), dim=1).tolist()


@pytest.mark.parametrize("bits", [2, 4, 16])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "temperature": 1.5},
        {"repetition_penalty": 1.3, "eos_token_id": [3, 9]},
    ],
    ids=["greedy", "beams", "sampling", "penalty and two ends"],
)
def test_padded_rows_inside_generate(model: VideoModel, frames: np.ndarray, how: dict[str, object], bits: int) -> None:
    """Both attentions give the same tokens; at 16 bits those of generate's own cache."""
    inputs = inputs_of(model, frames, *QUESTIONS)

    def drawn(cache: object) -> list[list[int]]:
        torch.manual_seed(0)
        return generated(model, inputs, cache, **how)

    other = drawn(library_cache(model, inputs, bits))
    with engine.windowed_attention(model):
        assert drawn(library_cache(model, inputs, bits)) == other
    if bits == 16:
        assert other == drawn(None)


@pytest.mark.parametrize("bits", [4, 16])
@pytest.mark.parametrize("ours", [False, True])
def test_candidate_tokens_that_are_taken_back(model: VideoModel, frames: np.ndarray, bits: int, ours: bool) -> None:
    """Prompt lookup runs guesses along, the first of them with the prompt, and crops those that were wrong."""
    inputs = inputs_of(model, frames, QUESTIONS[0])

    def run(**how: object) -> list[list[int]]:
        cache = library_cache(model, inputs, bits)
        if not ours:
            return generated(model, inputs, cache, **how)
        with engine.windowed_attention(model):
            return generated(model, inputs, cache, **how)

    assert run(prompt_lookup_num_tokens=3) == run()


def test_crop_stops_at_the_prompt(model: VideoModel, frames: np.ndarray) -> None:
    inputs = inputs_of(model, frames, QUESTIONS[0])
    cache = library_cache(model, inputs, 4)
    cache.crop(0)
    generated(model, inputs, cache, 4, eos_token_id=None)
    length = inputs["input_ids"].shape[1]
    assert cache.get_seq_length() == length + 3
    cache.crop(-3)
    assert cache.get_seq_length() == length
    for count in (-1, 1):
        with pytest.raises(ValueError, match="reaches into the prompt"):
            cache.crop(count)


def test_bytes_while_the_last_layer_is_open(model: VideoModel, frames: np.ndarray) -> None:
    """One new token: nothing has come after the last layer, so that it still is at full precision."""
    inputs = inputs_of(model, frames, QUESTIONS[0])
    cache = library_cache(model, inputs, 2)
    generated(model, inputs, cache, 1)
    sealed = [layer.sealed for layer in cache.layers]
    assert sealed == [True, True, False]
    first, last = cache.layers[0], cache.layers[-1]
    assert last.nbytes == 2 * last.keys.numel() * last.keys.itemsize
    assert cache.nbytes == 2 * first.nbytes + last.nbytes < cache.full_nbytes
    whole = library_cache(model, inputs, 2)
    generated(model, inputs, whole, 2, eos_token_id=None)
    assert cache.visual_bits == pytest.approx((2 * whole.visual_bits + 32) / 3)


def test_a_second_turn_on_the_same_cache(model: VideoModel, frames: np.ndarray) -> None:
    inputs = inputs_of(model, frames, QUESTIONS[0])

    def turns(cache: object) -> list[list[int]]:
        first = torch.tensor(generated(model, inputs, cache, 5, eos_token_id=None))
        ids = torch.cat([inputs["input_ids"], first, torch.tensor([[10, 11, 12]])], dim=1)
        return generated(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, cache, 5)

    expected = turns(DynamicCache())
    assert turns(library_cache(model, inputs, 16)) == expected
    with engine.windowed_attention(model):
        assert turns(library_cache(model, inputs, 16)) == expected


def test_reset_after_a_beam_search(model: VideoModel, frames: np.ndarray) -> None:
    inputs = inputs_of(model, frames, QUESTIONS[0])
    cache = library_cache(model, inputs, 4)
    greedy = generated(model, inputs, cache)
    for how in ({"num_beams": 3}, {"num_beams": 2}):
        cache.reset()
        assert cache.get_seq_length() == 0 == cache.nbytes
        generated(model, inputs, cache, **how)
    cache.reset()
    assert generated(model, inputs, cache) == greedy


@pytest.mark.parametrize("ours", [False, True])
def test_plain_forwards_with_gradients_on(model: VideoModel, frames: np.ndarray, ours: bool) -> None:
    """What is stored is cut off from the graph, which would grow with every token."""
    inputs = inputs_of(model, frames, QUESTIONS[0])

    def logits() -> torch.Tensor:
        cache = library_cache(model, inputs, 4)
        model.model(**inputs, past_key_values=cache)
        for token in (7, 8):
            output = model.model(input_ids=torch.tensor([[token]]), past_key_values=cache)
        assert not any(x.requires_grad for layer in cache.layers for x in layer.run)
        return output.logits

    with torch.no_grad():
        expected = logits()
    if not ours:
        assert torch.allclose(logits(), expected, atol=1e-4)
        return
    with engine.windowed_attention(model):
        assert torch.allclose(logits(), expected, atol=1e-4)


def test_padding_that_the_cache_does_not_know_is_refused(model: VideoModel, frames: np.ndarray) -> None:
    inputs = inputs_of(model, frames, *QUESTIONS)
    with engine.windowed_attention(model), pytest.raises(ValueError, match="`padding`"):
        generated(model, inputs, library_cache(model, inputs, 4, tell_padding=False))


def test_sliding_windows_are_refused_once_they_matter(folder: Path, frames: np.ndarray) -> None:
    config = AutoConfig.from_pretrained(folder)
    model = loading.load(str(folder), torch.device("cpu"), "auto")
    config.text_config.update({"layer_types": ["sliding_attention"] * 3, "sliding_window": 100})
    sliding = type(model.model)._from_config(config, attn_implementation="sdpa").eval()
    model = type(model)(sliding, model.processor)
    short = prefilled(model, [prompt_of(model, frames[:10])], Quantization(window=8))
    assert len(answer(model, short, 3)[0]) >= 1
    with pytest.raises(ModelError, match="last 100 tokens"):
        answer(model, prefilled(model, [prompt_of(model, frames)], Quantization(window=8)), stop_at_eos=False)


def test_a_cache_out_of_use_gives_its_memory_back_at_once(model: VideoModel, frames: np.ndarray) -> None:
    gc.collect()
    gc.disable()
    try:
        state = prefilled(model, [prompt_of(model, frames)], Quantization(window=8))
        answer(model, state)
        cache = weakref.ref(state.cache)
        del state
        assert cache() is None
    finally:
        gc.enable()


def test_one_model_in_two_threads(model: VideoModel, frames: np.ndarray) -> None:
    def run(question: str) -> list[list[int]]:
        state = prefilled(model, [prompt_of(model, frames, question)], Quantization(window=8))
        return answer(model, state, stop_at_eos=False)

    before = model.text_config._attn_implementation
    expected = [run(question) for question in QUESTIONS * 3]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, QUESTIONS * 3)) == expected
    assert model.text_config._attn_implementation == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_prefill_leaves_the_model_as_it_was(
    model: VideoModel, frames: np.ndarray, error: type[BaseException]
) -> None:
    request = engine.prepare(model, [prompt_of(model, frames)], Quantization(window=8), room=8)
    before = model.text_config._attn_implementation

    def stop(layer: int) -> None:
        if layer == 1:
            raise error

    with pytest.raises(error):
        engine.prefill(model, request, stop)
    assert model.text_config._attn_implementation == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.decoder.layers.modules())


@pytest.mark.parametrize(("after", "rows"), [(False, 1), (False, 3), (True, 1)])
@pytest.mark.parametrize("new_tokens", [6, 150])
def test_memory_budget_holds_to_the_end_of_the_answer(
    model: VideoModel, frames: np.ndarray, after: bool, rows: int, new_tokens: int
) -> None:
    """Padding's mask, a question that comes after the cache and an answer past the first room included."""
    prompts = [prompt_of(model, frames, question) for question in QUESTIONS[:rows]]

    def bytes_at_the_end(budget: int | None, policy: str = "windowquant") -> int:
        settings = Quantization(policy, kv_memory_bytes=budget, zero_point="integer")
        state = prefilled(model, prompts, settings, new_tokens, until_visual_end=after)
        if after:
            engine.ask_through_cache(model, state, prompts)
        answer(model, state, new_tokens, stop_at_eos=False)
        held = 0
        for layer in state.cache.layers:
            blocks = [block for segment in layer.segments for block in (segment.key, segment.value)]
            tensors = [layer.raw_key, layer.raw_value, layer.raw_mask]
            tensors += [x for block in blocks for x in (block.data, block.scale, block.minimum)]
            held += sum(x.numel() * x.element_size() for x in tensors if x is not None)
        assert held == state.cache.nbytes
        return held

    full = bytes_at_the_end(None, "fp16")
    for share in (0.85, 0.95, 1.0):
        assert bytes_at_the_end(int(share * full)) <= int(share * full)


@pytest.mark.parametrize("policy", ["windowquant", "focus:window=8", "cocktail", "random"])
@pytest.mark.parametrize("kv_dtype", ["float32", "float16"])
def test_memory_budget_holds_whatever_full_precision_takes(
    model: VideoModel, frames: np.ndarray, policy: str, kv_dtype: str
) -> None:
    prompts = [prompt_of(model, frames)]

    def held(policy: str, budget: int | None) -> int:
        settings = Quantization(policy, window=8, kv_memory_bytes=budget, kv_dtype=kv_dtype)
        return prefilled(model, prompts, settings, 4).cache.nbytes

    full = held("fp16", None)
    for share in (0.6, 0.75, 0.9):
        assert (share - 0.15) * full < held(policy, int(share * full)) <= share * full


def test_a_tiny_temperature_takes_the_likeliest(model: VideoModel, frames: np.ndarray) -> None:
    state = prefilled(model, [prompt_of(model, frames)], Quantization(window=8))
    for temperature in (1e-46, 1e-40, 1e-6):
        token = next(decoding.decode(model, state, Generation(temperature=temperature)))
        assert token.tolist() == state.logits.argmax(dim=-1).tolist()


def test_placeholder_in_a_question_is_refused(model: VideoModel, frames: np.ndarray) -> None:
    with pytest.raises(WqError, match="holds `<video>`"):
        prompt_of(model, frames, "what is <video> ?")


def test_an_option_may_end_in_any_way_the_model_can(model: VideoModel, frames: np.ndarray) -> None:
    prompt = prompt_of(model, frames)
    state = prefilled(model, [prompt], Quantization("fp16"), until_visual_end=True)
    engine.ask_through_cache(model, state, [prompt])
    words = model.processor.tokenizer("a dog")["input_ids"]
    with torch.inference_mode():
        embeds = torch.cat([prompt.embeds, model.embed(torch.tensor(words))])
        logits = model.logits(model.decoder(inputs_embeds=embeds[None]).last_hidden_state)[0].double()
    chances = logits.softmax(dim=-1)[len(prompt.embeds) - 1 :]
    scorer = Scorer(model, {}, Generation())
    before = model.model.generation_config.eos_token_id
    try:
        for ends in ([3], [3, 9], None):
            model.model.generation_config.eos_token_id = ends
            expected = chances[0, words[0]] * chances[1, words[1]] * (chances[2, ends].sum() if ends else 1)
            assert scorer.likelihood(state, "a dog") == pytest.approx(float(expected.log()), abs=1e-4)
    finally:
        model.model.generation_config.eos_token_id = before
