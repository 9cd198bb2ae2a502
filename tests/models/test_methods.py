"""Every method per token on a tiny model: both attentions, the bytes there are, batches, beams, steps."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision
from tiny_qwen_vl import qwen_vl

from wq_cli import decoding, describe, engine, policies
from wq_cli.cache import WindowCache
from wq_cli.config import Generation, Quantization
from wq_cli.errors import UsageError, WqError
from wq_cli.measurements import RANGES, channel_ranges
from wq_cli.models import loading
from wq_cli.models.base import Prompt, VideoModel
from wq_cli.placement import VisualTokens
from wq_cli.policies.skvq import k_means
from wq_cli.rotary import Rotary
from wq_cli.transforms import Smoothing

# The tiny model has 2 KV heads of 16 channels, so groups are smaller than in the papers.
METHODS = (
    "rtn2:axes=token:group=32",
    "rtn4:axes=token:group=16:key_centering=on",
    "rtn4:axes=kivi",
    "kivi:residual=32",
    "kivi:bits=4:group=16:residual=16",
    "akvq-vl:recent=16:pivots=5:pivot_layer=1:tsa_layers=1",
    "akvq-vl:recent=16:key_centering=on",
    "skvq:group=8:recent=16",
    "skvq:group=24:recent=16:clip_search=on:pre_rope=off",
    "skvq:group=32:value_bits=1.5:key_bits=4:fp8=off:recent=30:reorder=off",
    "smoothquant:group=32:bits=4",
    "vidkv",
    "vidkv:key_bits=1.5:value_bits=1.58",
    "mixkvq:group=16:residual=16:tau_16=0.6:tau_4=0.3",
    "kvtuner:pairs=k4v2:axes=token:group=16",
)
QUESTIONS = ["what happens in the video ?", "is there a dog ?", "what ?"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    return loading.load(str(llava_onevision(tmp_path_factory.mktemp("onevision"))), torch.device("cpu"), "auto")


@pytest.fixture(scope="module")
def prompts(model: VideoModel) -> list[Prompt]:
    frames = np.random.default_rng(0).integers(0, 256, (37, 40, 52, 3), dtype=np.uint8)
    visual = model.encode(frames, np.arange(37) / 2.0)
    return [model.prompt(question, visual) for question in QUESTIONS]


def settings(spec: str, **how: Any) -> Quantization:
    return Quantization(spec, window=8, **how)


def prefilled(
    model: VideoModel, prompts: list[Prompt], spec: str, *, reorder: bool = True, **how: Any
) -> engine.Prefilled:
    return engine.prefill(model, engine.prepare(model, prompts, settings(spec, reorder=reorder), room=8, **how))


def asked(model: VideoModel, prompts: list[Prompt], spec: str, *, reorder: bool = True) -> torch.Tensor:
    """Logits of every token of the questions, read through the packed cache."""
    state = prefilled(model, prompts, spec, reorder=reorder, until_visual_end=True)
    embeds, positions = engine.after_video(prompts)
    return engine.extend(model, state, embeds, last_only=False, positions=positions)


def answer(model: VideoModel, state: engine.Prefilled, tokens: int = 8) -> list[list[int]]:
    steps = decoding.decode(model, state, Generation(max_new_tokens=tokens), stop_at_eos=False)
    return torch.stack(list(steps), dim=1).tolist()


@pytest.mark.parametrize("spec", METHODS)
def test_what_attention_sees_is_what_is_stored(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    """The fused path and transformers' own attention over everything dequantized give the same logits."""
    state = prefilled(model, prompts[:1], spec, until_visual_end=True)
    embeds, positions = engine.after_video(prompts[:1])
    with torch.inference_mode():
        theirs = model.logits(engine.run_decoder(model, embeds, positions, state.cache))
    ours = asked(model, prompts[:1], spec)
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)
    full = asked(model, prompts[:1], "fp16")
    assert not torch.allclose(ours, full, atol=1e-3)  # something was quantized


def tensors_in(held: object) -> list[torch.Tensor]:
    """Every tensor of a block or a transform, those of blocks inside it too.

    Places of tokens in the prompt are not the block's own: the cache has them once for all layers.
    """
    values = [value for name, value in vars(held).items() if name != "index"]
    inner = [x for value in values if hasattr(value, "levels") for x in tensors_in(value)]
    return [x for x in values if isinstance(x, torch.Tensor)] + inner


@pytest.mark.parametrize("spec", METHODS)
def test_bits_are_those_of_the_tensors_that_exist(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    cache = prefilled(model, prompts[:1], spec).cache
    held = visual = 0
    for layer in cache.layers:
        tensors = [x for s in layer.segments for block in (s.key, s.value) for x in tensors_in(block)]
        if isinstance(layer.transform, Smoothing):  # a rotation is a constant of the method
            tensors += tensors_in(layer.transform)
        packed = sum(x.numel() * x.element_size() for x in tensors)
        held += packed + sum(x.numel() * x.element_size() for x in layer.run)
        tokens = cache.visual.positions.shape[1] - sum(segment.tokens for segment in layer.segments)
        visual += packed + 2 * tokens * 2 * 16 * 4  # keys and values of 2 heads of 16 channels in float32
    assert held == cache.nbytes
    assert cache.visual_bits == 8 * visual / (3 * 2 * cache.visual.positions.shape[1] * 2 * 16)
    assert cache.visual_bits < 32


@pytest.mark.parametrize("spec", ["akvq-vl:recent=9999", "skvq:recent=9999:group=32", "kivi:residual=9999"])
def test_when_all_is_recent_nothing_changes(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    """Rotated keys and values at full precision give the answer and the logits of the model itself."""
    torch.testing.assert_close(asked(model, prompts[:1], spec), asked(model, prompts[:1], "fp16"), atol=1e-4, rtol=0)
    assert answer(model, prefilled(model, prompts[:1], spec)) == answer(model, prefilled(model, prompts[:1], "fp16"))


@pytest.mark.parametrize("spec", METHODS)
def test_windows_in_the_order_of_time_are_the_same_windows(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    """Those at full precision are segments too then, between the others."""
    logits = asked(model, prompts[:1], spec, reorder=False)
    torch.testing.assert_close(logits, asked(model, prompts[:1], spec), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("spec", ["smoothquant:alpha=0.5", "smoothquant:alpha=1", "akvq-vl"])
def test_other_coordinates_alone_change_nothing(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    """The same with nothing quantized: scores and outputs are those of the model."""
    request = engine.prepare(model, prompts[:1], settings(spec), room=8, until_visual_end=True)
    full = policies.create(settings("fp16", fixed_first_window=False))
    request.policy.plan_layer = full.plan_layer  # type: ignore[method-assign]
    state = engine.prefill(model, request)
    assert all(layer.transform is not None and not layer.segments for layer in state.cache.layers)
    embeds, positions = engine.after_video(prompts[:1])
    logits = engine.extend(model, state, embeds, last_only=False, positions=positions)
    torch.testing.assert_close(logits, asked(model, prompts[:1], "fp16"), atol=1e-4, rtol=0)


def test_plain_rounding_of_all_windows_is_vidkv_at_two_bits(model: VideoModel, prompts: list[Prompt]) -> None:
    request = engine.prepare(model, prompts[:1], settings("rtn2", fixed_first_window=False), room=8)
    assert answer(model, engine.prefill(model, request)) == answer(model, prefilled(model, prompts[:1], "vidkv"))


@pytest.mark.parametrize("spec", METHODS)
def test_the_prefill_is_the_models_own(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    assert torch.equal(prefilled(model, prompts[:1], spec).logits, prefilled(model, prompts[:1], "fp16").logits)


@pytest.mark.parametrize("spec", METHODS)
def test_rows_of_a_batch_are_stored_alike(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    """Three times the same request: every row answers like the first, and rows of unlike length run."""
    rows = answer(model, prefilled(model, [prompts[0]] * 3, spec))
    assert rows[1] == rows[0] == rows[2]
    assert np.shape(answer(model, prefilled(model, prompts, spec), 4)) == (3, 4)


@pytest.mark.parametrize("spec", [spec for spec in METHODS if not spec.startswith(("smoothquant", "mixkvq"))])
def test_beams_inside_generate(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    """Rows that change places take along what is stored: both attentions find the same beams."""
    visual = VisualTokens.from_mask(prompts[0].visual_mask[None], 8)
    nothing = np.full((1, visual.windows), np.nan)
    found = []
    for ours in (False, True):
        policy = policies.create(settings(spec))
        policy.begin(visual, model.decoder)
        policy.place(prompts[0].positions[None])
        cache = WindowCache(
            model.text_config, visual, policy.coding(), planner=lambda i, p=policy: p.plan_layer(i, nothing, None)
        )
        with engine.windowed_attention(model) if ours else nullcontext():
            found.append(
                model.model.generate(
                    inputs_embeds=prompts[0].embeds[None],
                    past_key_values=cache,
                    max_new_tokens=8,
                    num_beams=3,
                    do_sample=False,
                    suppress_tokens=[model.video_token_id],
                ).tolist()
            )
    assert found[0] == found[1]


@pytest.mark.parametrize("family", ["llava_onevision", "qwen2_vl", "qwen3_vl"])
def test_keys_before_their_rotary_position(tmp_path: Path, family: str) -> None:
    """What is computed back from the cache is what the projection, and Qwen3's norm behind it, gave."""
    folder = llava_onevision(tmp_path) if family == "llava_onevision" else qwen_vl(tmp_path, family)
    model = loading.load(str(folder), torch.device("cpu"), "auto")
    frames = np.random.default_rng(0).integers(0, 256, (6, 56, 84, 3), dtype=np.uint8)
    prompt = model.prompt(QUESTIONS[0], model.encode(frames, np.arange(6) / 2.0))
    attention = model.decoder.layers[1].self_attn
    projected: list[torch.Tensor] = []
    last = getattr(attention, "k_norm", attention.k_proj)
    hook = last.register_forward_hook(lambda module, args, output: projected.append(output))
    cache = WindowCache(
        model.text_config,
        VisualTokens.from_mask(prompt.visual_mask[None], 8),
        policies.create(settings("fp16")).coding(),
    )
    with torch.inference_mode():
        positions = prompt.positions.unsqueeze(-2)
        engine.run_decoder(model, prompt.embeds[None], positions, cache)
        hook.remove()
        keys = cache.layers[1].keys
        expected = projected[0].view(1, keys.shape[2], keys.shape[1], keys.shape[3]).transpose(1, 2)
        rotary = Rotary(model.decoder, positions)
        torch.testing.assert_close(rotary.undo(keys), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(rotary.apply(expected), keys, atol=1e-5, rtol=1e-5)
        some = torch.tensor([[5, 2, 9]])
        torch.testing.assert_close(rotary.apply(expected[:, :, some[0]], some), keys[:, :, some[0]])


def test_what_calibration_measures_is_what_the_prompt_has(model: VideoModel, prompts: list[Prompt]) -> None:
    """Maxima of the prompt at hand, told beforehand, smooth it as those that are found in its prefill."""
    numbers = {name: rows.tolist() for name, rows in channel_ranges(model, prompts[0]).items()}
    scales = []
    for spec in ("smoothquant:group=32", "smoothquant:group=32:calibrated=on"):
        policy = policies.create(settings(spec))
        if policy.needs_numbers:
            policy.told(numbers)
        request = engine.prepare(model, prompts[:1], policy.settings, room=8, policy=policy)
        layers = engine.prefill(model, request).cache.layers
        scales.append([x for layer in layers for x in tensors_in(layer.transform)])
    assert len(scales[0]) == 6
    for ours, told in zip(*scales, strict=True):
        torch.testing.assert_close(told, ours)


def test_told_clusters_are_those_of_the_numbers(model: VideoModel, prompts: list[Prompt]) -> None:
    numbers = {name: rows.tolist() for name, rows in channel_ranges(model, prompts[0]).items()}
    policy = policies.create(settings("skvq:group=8:recent=16:calibrated=on"))
    policy.told(numbers)
    cache = engine.prefill(model, engine.prepare(model, prompts[:1], policy.settings, room=8, policy=policy)).cache
    for index, layer in enumerate(cache.layers):
        segment = layer.segments[0]
        for name, block in (("key", segment.key.inner), ("value", segment.value)):
            ends = np.stack([numbers[f"{name}_low"][index], numbers[f"{name}_high"][index]], axis=1)
            assert block.groups.flatten().tolist() == k_means(ends, 4).tolist()


@pytest.mark.parametrize("name", ["skvq", "smoothquant"])
def test_numbers_of_something_else_are_refused(name: str) -> None:
    with pytest.raises(WqError, match="incomplete"):
        policies.create(settings(f"{name}:calibrated=on")).told({"key_low": [[0.0]]})


@pytest.mark.parametrize("spec", ["skvq:group=8:calibrated=on", "smoothquant:group=32:calibrated=on"])
def test_numbers_of_another_model_are_refused(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    policy = policies.create(settings(spec))
    policy.told({name: [[1.0] * 24] * 3 for name in RANGES})
    request = engine.prepare(model, prompts[:1], policy.settings, room=8, policy=policy)
    with pytest.raises(WqError, match="told of 24 channels, the model has 32"):
        engine.prefill(model, request)


@pytest.mark.parametrize(
    "spec", ["skvq:group=24:reorder=off:clip_search=on", "rtn2:axes=token:group=24", "smoothquant:group=5"]
)
def test_groups_that_do_not_fit_the_heads_are_refused(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    with pytest.raises(UsageError, match="no whole number of groups"):
        prefilled(model, prompts[:1], spec)


@pytest.mark.parametrize("spec", ["smoothquant:group=32", "skvq:group=8", "akvq-vl"])
def test_memory_comes_back_at_once(model: VideoModel, prompts: list[Prompt], spec: str) -> None:
    gc.collect()
    gc.disable()
    try:
        state = prefilled(model, prompts[:1], spec)
        answer(model, state, 2)
        cache = weakref.ref(state.cache)
        del state
        assert cache() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("spec", "role"), [("windowquant", "first"), ("rtn2", "first"), ("vidkv", "scored")])
def test_a_first_window_that_is_quantized_has_no_role_of_its_own(
    model: VideoModel, prompts: list[Prompt], spec: str, role: str
) -> None:
    request = engine.prepare(model, prompts[:1], settings(spec), room=8)
    plans = engine.prefill(model, request).plans
    tokens = int(prompts[0].visual_mask.sum())
    clip = SimpleNamespace(frames=np.zeros((37, 1, 1, 3)), span_seconds=np.zeros((37, 2)))
    visual = SimpleNamespace(frames=np.arange(tokens) * 37 // tokens, frames_per_token=1)
    rows = describe.windows(clip, visual, request.found, plans, settings(spec))  # type: ignore[arg-type]
    assert rows[0].role == role
    assert (set(rows[0].key_bits) == {16}) == (role == "first")


def test_every_policy_can_be_made() -> None:
    for name in policies.names():
        assert policies.check(name) == name
