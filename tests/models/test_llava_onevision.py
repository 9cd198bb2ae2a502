"""LLaVA-OneVision through our adapter and cache against transformers' own processor, forward and generate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision

from wq_cli import decoding, engine, policies
from wq_cli.cache import VisualTokens, WindowCache
from wq_cli.codecs import ChannelInWindow
from wq_cli.config import Generation, Quantization
from wq_cli.models import loading
from wq_cli.models.base import Prompt, VideoModel

QUESTION = "what happens in the video ?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    folder = llava_onevision(tmp_path_factory.mktemp("onevision"))
    return loading.load(str(folder), torch.device("cpu"), "auto")


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (37, 40, 52, 3), dtype=np.uint8)


def processed(model: VideoModel, frames: np.ndarray, question: str = QUESTION):
    """What transformers' processor makes of the same input."""
    content = [{"type": "video"}, {"type": "text", "text": question}]
    text = model.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    return model.processor(text=[text], videos=[list(frames)], do_sample_frames=False, return_tensors="pt")


def prompt_of(model: VideoModel, frames: np.ndarray, question: str = QUESTION) -> Prompt:
    visual = model.encode(frames, np.arange(len(frames)) / 2.0)
    return model.prompt(question, visual)


def generated(model: VideoModel, inputs, tokens: int = 24, **kwargs) -> list[int]:
    output = model.model.generate(**inputs, do_sample=False, max_new_tokens=tokens, **kwargs)
    return output[0, inputs["input_ids"].shape[1] :].tolist()


def prefilled(model: VideoModel, prompts: list[Prompt], settings: Quantization, **batching) -> engine.Prefilled:
    return engine.prefill(model, engine.prepare(model, prompts, settings, room=64, **batching))


def answer(model: VideoModel, state: engine.Prefilled, tokens: int = 24) -> list[list[int]]:
    steps = list(decoding.decode(model, state, Generation(max_new_tokens=tokens)))
    return torch.stack(steps, dim=1).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_prompt_is_the_processors(model: VideoModel, frames: np.ndarray, count: int) -> None:
    inputs = processed(model, frames[:count])
    visual = model.encode(frames[:count], np.arange(count) / 2.0)
    assert model.prompt_ids(QUESTION, visual).tolist() == inputs["input_ids"][0].tolist()
    assert len(visual.embeds) == 4 * count + 1 == len(visual.frames)
    assert visual.frames.tolist() == [*np.repeat(np.arange(count), 4), -1]


def test_embeddings_are_those_of_the_model(model: VideoModel, frames: np.ndarray) -> None:
    inputs = processed(model, frames)
    seen = {}
    hook = model.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: seen.update(embeds=kwargs["inputs_embeds"]), with_kwargs=True
    )
    with torch.inference_mode():
        model.model(**inputs)
    hook.remove()
    assert torch.allclose(prompt_of(model, frames).embeds, seen["embeds"][0], atol=1e-5)


@pytest.mark.parametrize("settings", [Quantization(policy="fp16"), Quantization(kv_split=((16, 16),) * 3)])
def test_full_precision_gives_generates_tokens(model: VideoModel, frames: np.ndarray, settings: Quantization) -> None:
    expected = generated(model, processed(model, frames))
    state = prefilled(model, [prompt_of(model, frames)], settings)
    assert answer(model, state)[0] == expected
    assert state.cache.nbytes == state.cache.full_nbytes
    assert state.cache.visual_bits == 32


def test_padded_batch_gives_each_rows_tokens(model: VideoModel, frames: np.ndarray) -> None:
    questions = [QUESTION, "is there a dog ?"]
    expected = [generated(model, processed(model, frames, q), 12) for q in questions]
    state = prefilled(model, [prompt_of(model, frames, q) for q in questions], Quantization(policy="fp16"))
    for row, want in zip(answer(model, state, 12), expected, strict=True):
        assert row[: len(want)] == want


def logits_after(model: VideoModel, frames: np.ndarray, settings: Quantization) -> torch.Tensor:
    """Logits of every question token, read through the packed cache."""
    prompt = prompt_of(model, frames)
    state = prefilled(model, [prompt], settings, until_visual_end=True)
    return engine.extend(model, state, prompt.embeds[None, prompt.visual_end :], last_only=False)


@pytest.mark.parametrize("policy", ["windowquant", "rtn4", "random"])
def test_reordering_changes_nothing(model: VideoModel, frames: np.ndarray, policy: str) -> None:
    reordered = logits_after(model, frames, Quantization(policy=policy, window=8))
    in_time = logits_after(model, frames, Quantization(policy=policy, window=8, reorder=False))
    assert torch.allclose(reordered, in_time, atol=1e-4, rtol=1e-5)


def test_more_bits_are_nearer_to_full_precision(model: VideoModel, frames: np.ndarray) -> None:
    full = logits_after(model, frames, Quantization(policy="fp16", window=8)).double().log_softmax(-1)
    kl = []
    for policy in ("rtn8", "rtn4", "rtn2"):
        made = logits_after(model, frames, Quantization(policy=policy, window=8)).double().log_softmax(-1)
        kl.append(float((full.exp() * (full - made)).sum(-1).mean()))
    assert 0 < kl[0] < kl[1] / 10 < kl[2] / 10


def test_question_after_cache_of_full_precision_is_the_plain_prefill(model: VideoModel, frames: np.ndarray) -> None:
    prompt = prompt_of(model, frames)
    plain = prefilled(model, [prompt], Quantization(policy="fp16"))
    after = prefilled(model, [prompt], Quantization(policy="fp16"), until_visual_end=True)
    engine.ask_through_cache(model, after, [prompt])
    assert torch.allclose(after.logits, plain.logits, atol=1e-4)
    assert after.position.tolist() == plain.position.tolist() == [len(prompt.embeds)]


def library_cache(model: VideoModel, inputs, plan_bits: int) -> WindowCache:
    settings = Quantization(policy=f"rtn{plan_bits}" if plan_bits < 16 else "fp16", window=8)
    policy = policies.create(settings)
    visual = VisualTokens.from_mask(inputs["input_ids"] == model.video_token_id, 8)
    nothing = np.full((1, visual.windows), np.nan)
    return WindowCache(
        model.text_config, visual, ChannelInWindow(8), planner=lambda layer: policy.plan_layer(layer, nothing, None)
    )


@pytest.mark.parametrize("bits", [2, 4, 16])
@pytest.mark.parametrize("beams", [1, 3])
def test_cache_inside_generate(model: VideoModel, frames: np.ndarray, bits: int, beams: int) -> None:
    """In other people's code: any attention, and ours, give the same tokens; at 16 bits those of no cache of ours."""
    inputs = processed(model, frames)
    kwargs = {"num_beams": beams}
    other = generated(model, inputs, past_key_values=library_cache(model, inputs, bits), **kwargs)
    cache = library_cache(model, inputs, bits)
    with engine.windowed_attention(model):
        ours = generated(model, inputs, past_key_values=cache, **kwargs)
    assert ours == other
    assert all(layer.sealed and layer.keys is None for layer in cache.layers)
    if bits == 16:
        assert ours == generated(model, inputs, **kwargs)


def test_one_layer_at_a_time_holds_full_precision(model: VideoModel, frames: np.ndarray) -> None:
    prompt = prompt_of(model, frames)
    request = engine.prepare(model, [prompt], Quantization(policy="rtn2", window=8), room=8)
    cache = request.cache
    held = []
    for layer in model.decoder.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda *_: held.append(sum(c.keys is not None for c in cache.layers))
        )
    engine.prefill(model, request)
    for layer in model.decoder.layers:
        layer.self_attn.o_proj._forward_pre_hooks.clear()
    assert held == [1] * len(cache.layers)


def test_measured_sensitivity_is_eq_9(model: VideoModel, frames: np.ndarray) -> None:
    """Against the residual stream that transformers' own forward shows, in float64."""
    prompt = prompt_of(model, frames)
    state = prefilled(model, [prompt], Quantization(window=8))
    entering: list[torch.Tensor] = []
    added: list[torch.Tensor] = []
    hooks = []
    for layer in model.decoder.layers:
        hooks.append(layer.register_forward_pre_hook(lambda module, args: entering.append(args[0].double())))
        hooks.append(layer.self_attn.register_forward_hook(lambda module, args, out: added.append(out[0].double())))
    with torch.inference_mode():
        model.decoder(inputs_embeds=prompt.embeds[None])
    for hook in hooks:
        hook.remove()
    expected = []
    for before, attention in zip(entering, added, strict=True):
        after = before + attention
        cosine = (before * after).sum(-1) / (before.norm(dim=-1) * after.norm(dim=-1))
        expected.append(max(0.0, cosine.mean().item()))
    assert state.sensitivity == pytest.approx(expected, abs=1e-5)


def test_everything_is_restored_after_an_error(model: VideoModel, frames: np.ndarray) -> None:
    class Broken(policies.create(Quantization()).__class__):
        def plan_layer(self, *args: object) -> None:
            raise RuntimeError("no plan")

    settings = Quantization(window=8)
    request = engine.prepare(model, [prompt_of(model, frames)], settings, room=8)
    before = model.text_config._attn_implementation
    with pytest.raises(RuntimeError, match="no plan"):
        engine.prefill(model, replace(request, policy=Broken(settings)))
    assert model.text_config._attn_implementation == before
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.decoder.modules())


@pytest.mark.parametrize("count", [1, 7, 8, 9])
def test_short_clips(model: VideoModel, frames: np.ndarray, count: int) -> None:
    """M below S, M of exactly one window, tails of every kind: 4 tokens a frame and one newline."""
    state = prefilled(model, [prompt_of(model, frames[:count])], Quantization(window=32))
    assert state.cache.visual.windows == (4 * count + 1) // 32
    assert len(answer(model, state, 4)[0]) >= 1


def test_reported_bytes_are_those_of_the_tensors(model: VideoModel, frames: np.ndarray) -> None:
    state = prefilled(model, [prompt_of(model, frames)], Quantization(window=8))
    total = metadata = 0
    for layer in state.cache.layers:
        total += sum(x.numel() * x.element_size() for x in (layer.raw_key, layer.raw_value))
        for block in (b for segment in layer.segments for b in (segment.key, segment.value)):
            for name in ("data", "scale", "minimum"):
                x = getattr(block, name)
                total += 0 if x is None else x.numel() * x.element_size()
                metadata += 0 if x is None or name == "data" else x.numel() * x.element_size()
    assert state.cache.nbytes == total
    assert state.cache.metadata_nbytes == metadata > 0
    assert state.cache.nbytes < state.cache.full_nbytes


def test_rewind_forgets_exactly_what_was_run(model: VideoModel, frames: np.ndarray) -> None:
    prompt = prompt_of(model, frames)
    state = prefilled(model, [prompt], Quantization(policy="rtn4", window=8), until_visual_end=True)
    rest = prompt.embeds[None, prompt.visual_end :]
    first = engine.extend(model, state, rest)
    engine.rewind(state, rest.shape[1])
    assert state.cache.get_seq_length() == prompt.visual_end
    assert torch.equal(engine.extend(model, state, rest), first)
    with pytest.raises(ValueError, match="reaches into"):
        engine.rewind(state, rest.shape[1] + 1)
