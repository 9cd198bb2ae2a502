"""One prefill for many policies, and what is measured beforehand, against the engine's prefill and plain autograd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision
from tiny_qwen_vl import qwen_vl

from wq_cli import decoding, engine, measurements, offline, policies, recorded
from wq_cli.bench.measure import forced
from wq_cli.commands.calibrate import POLICIES
from wq_cli.config import Generation, Quantization
from wq_cli.models import loading
from wq_cli.models.base import Prompt, VideoModel
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.focus import Focus
from wq_cli.policies.kvtuner import PAIRS
from wq_cli.profile import Profile
from wq_cli.recorded import Kept, Recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOCUS = "focus:window=8:bits=8"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    return loading.load(str(llava_onevision(tmp_path_factory.mktemp("onevision"))), torch.device("cpu"), "auto")


def prompts_of(model: VideoModel) -> list[Prompt]:
    frames = np.random.default_rng(0).integers(0, 256, (20, 40, 52, 3), dtype=np.uint8)
    visual = model.encode(frames, np.arange(20) / 2.0)
    return [model.prompt(question, visual) for question in ("what happens in the video ?", "is there a dog ?")]


def through_engine(model: VideoModel, prompt: Prompt, settings: Quantization, **how: object) -> engine.Prefilled:
    request = engine.prepare(model, [prompt], settings, room=4, until_visual_end=True, **how)  # type: ignore[arg-type]
    state = engine.prefill(model, request)
    engine.ask_through_cache(model, state, [prompt])
    return state


@pytest.mark.parametrize("spec", ["windowquant", FOCUS, "smoothquant:group=32:bits=8", "akvq-vl:recent=16"])
def test_a_recorded_prefill_seals_what_the_engine_seals(model: VideoModel, spec: str) -> None:
    prompts = prompts_of(model)
    recording = Recording(model, prompts[0])
    settings = Quantization(spec, window=8)
    for prompt in (prompts[1], prompts[0]):  # a question leaves nothing behind for the next
        here = recording.sealed(prompt, settings, 4)
        there = through_engine(model, prompt, settings, sensitivity=recording.sensitivity)
        assert here.cache.nbytes == there.cache.nbytes
        torch.testing.assert_close(here.logits, there.logits, atol=2e-4, rtol=1e-3)
        assert here.position.tolist() == there.position.tolist()


def test_recorded_sensitivity_is_that_of_the_prefill(model: VideoModel) -> None:
    prompt = prompts_of(model)[0]
    measured = through_engine(model, prompt, Quantization(window=8)).sensitivity
    assert Recording(model, prompt).sensitivity == pytest.approx(measured, abs=1e-5)


@pytest.mark.parametrize("kept", [Kept(), Kept(queries=False, stream=False)])
def test_bytes_of_a_recording_are_those_of_its_tensors(model: VideoModel, kept: Kept) -> None:
    prompt = prompts_of(model)[0]
    recording = Recording(model, prompt, kept=kept)
    held = [x for layer in recording._cache.layers for x in layer.run]
    held += [*recording._queries.values(), *recording._streams.values()]
    assert sum(x.nbytes for x in held) == kept.nbytes(model, prompt.visual_end)


def test_a_recording_that_takes_most_of_the_memory_is_not_made(
    model: VideoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompts_of(model)[0]
    needed = Kept().nbytes(model, len(prompt.embeds))
    for free, made in ((2 * needed - 1, False), (2 * needed, True), (None, True)):
        monkeypatch.setattr(recorded, "memory", lambda device, free=free: (free, None))
        assert (Recording.if_it_fits(model, prompt, None, Kept()) is not None) is made


def test_what_policies_look_at_is_kept() -> None:
    def kept(*names: str) -> Kept:
        return Kept.for_policies(policies.create(Quantization(name)) for name in names)

    assert kept("windowquant", "rtn2", "kivi") == Kept(queries=False, stream=False)
    assert kept("rtn2", "akvq-vl") == Kept(queries=False, stream=True)
    assert kept("focus", "rtn2") == Kept(queries=True, stream=False)


def test_a_policy_that_overrides_observe_says_so() -> None:
    for name in policies.names():
        made = policies.create(Quantization(name))
        assert made.needs_stream == (type(made).observe is not Policy.observe), name


def test_another_beginning_is_told(model: VideoModel) -> None:
    first, second = prompts_of(model)
    recording = Recording(model, first)
    assert recording.begins(second)
    changed = second.embeds.clone()
    changed[second.visual_end - 1] += 1
    assert not recording.begins(replace(second, embeds=changed))


def test_a_recording_keeps_what_deepstack_adds(tmp_path: Path) -> None:
    model = loading.load(str(qwen_vl(tmp_path, "qwen3_vl")), torch.device("cpu"), "auto")
    prompt = prompts_of(model)[0]
    settings = Quantization("fp16", window=8)
    here = Recording(model, prompt).sealed(prompt, settings, 4)
    torch.testing.assert_close(here.logits, through_engine(model, prompt, settings).logits, atol=2e-4, rtol=1e-3)


@torch.inference_mode()
def test_focus_seals_the_video_alone_whether_or_not_the_question_was_in_the_prefill(model: VideoModel) -> None:
    """The question is run along for its queries: the cache must hold what it held without."""
    prompt = prompts_of(model)[0]
    after = through_engine(model, prompt, Quantization(FOCUS))
    at_once = engine.prefill(model, engine.prepare(model, [prompt], Quantization(FOCUS), room=4))
    pairs = zip(after.cache.layers, at_once.cache.layers, strict=True)
    for layer, (left, right) in enumerate(pairs):
        np.testing.assert_array_equal(after.plans[layer].key_bits, at_once.plans[layer].key_bits)
        assert left.length == right.length == len(prompt.embeds)
        for ours, other in zip(left.segments, right.segments, strict=True):
            # Only the question's own keys differ: in `after` it saw packed windows, not so the video.
            assert torch.equal(ours.key.data, other.key.data) and torch.equal(ours.value.data, other.value.data)


@torch.inference_mode()
def test_focus_in_a_batch_of_rows_that_are_padded(model: VideoModel) -> None:
    prompts = prompts_of(model)
    request = engine.prepare(model, prompts, Quantization("focus:window=8:bits=16"), room=4)
    state = engine.prefill(model, request)
    tokens = torch.stack(list(decoding.decode(model, state, Generation(max_new_tokens=3), stop_at_eos=False)), dim=1)
    for row, prompt in enumerate(prompts):
        alone = engine.prefill(model, engine.prepare(model, [prompt], Quantization("fp16"), room=4))
        expected = list(decoding.decode(model, alone, Generation(max_new_tokens=3), stop_at_eos=False))
        assert tokens[row].tolist() == torch.cat(expected).tolist()


def test_gradient_norms_are_those_of_a_plain_backward(model: VideoModel) -> None:
    prompt = prompts_of(model)[0]
    found = measurements.gradient_norms(model, prompt)
    state = engine.prefill(model, engine.prepare(model, [prompt], Quantization("fp16"), room=16))
    ids = torch.cat([t.clone() for t in decoding.decode(model, state, Generation(max_new_tokens=16))])
    decoder = model.decoder
    decoder.zero_grad()
    embeds = torch.cat([prompt.embeds.clone(), model.embed(ids.clone())])[None].detach()
    hidden = decoder(inputs_embeds=embeds).last_hidden_state[0, len(prompt.embeds) - 1 : -1]
    log_probs = model.model.lm_head(hidden).log_softmax(dim=-1)
    (-log_probs[torch.arange(len(ids)), ids.clone()].mean()).backward()
    for layer, part in enumerate(decoder.layers):
        for name, weight in (("key", part.self_attn.k_proj.weight), ("value", part.self_attn.v_proj.weight)):
            assert found[f"{name}_gradient"][layer] == pytest.approx(float(weight.grad.norm()), rel=1e-3, abs=1e-7)
    decoder.zero_grad()


def test_pair_costs_are_the_kl_of_one_quantized_layer(model: VideoModel) -> None:
    prompt = prompts_of(model)[0]
    costs = measurements.costs_of_mode(model, Recording(model, prompt), prompt, "kivi")
    assert costs.shape == (3, 9)
    assert (costs >= 0).all() and (costs[:, -1] > costs[:, 0]).all()

    # One entry by hand: layer 1 with keys at 4 and values at 2 bits.
    full = through_engine(model, prompt, Quantization("fp16"))
    answer = torch.stack([t.clone() for t in decoding.decode(model, full, Generation(max_new_tokens=16))], dim=1)
    reference = forced(model, through_engine(model, prompt, Quantization("fp16")), answer).double()
    one_layer = measurements._OneLayer(Quantization("kvtuner:group=32"))
    one_layer.layer, one_layer.pair = 1, (4, 2)
    request = engine.prepare(model, [prompt], one_layer.settings, room=16, until_visual_end=True, policy=one_layer)
    state = engine.prefill(model, request)
    engine.ask_through_cache(model, state, [prompt])
    other = forced(model, state, answer).double()
    kl = float((reference.exp() * (reference - other)).sum(dim=-1).mean())
    assert costs[1, PAIRS.index((4, 2))] == pytest.approx(kl, rel=0.05, abs=1e-8)


def test_side_costs_are_shares_of_the_kl_of_one_quantized_side(model: VideoModel) -> None:
    prompt = prompts_of(model)[0]
    shares = measurements.side_costs(model, prompt)
    assert {side: found.shape for side, found in shares.items()} == {"key": (3,), "value": (3,)}

    class OneSide(Focus):
        def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
            widths = [2 if (layer, side) == chosen else 16 for side in range(2)]
            return self._same_width(relevance.shape[1], *widths)

    def asked(policy: Policy | None, settings: Quantization) -> engine.Prefilled:
        request = engine.prepare(model, [prompt], settings, room=16, until_visual_end=True, policy=policy)
        state = engine.prefill(model, request)
        engine.ask_through_cache(model, state, [prompt])
        return state

    full = asked(None, Quantization("fp16"))
    answer = torch.stack([t.clone() for t in decoding.decode(model, full, Generation(max_new_tokens=16))], dim=1)
    reference = forced(model, asked(None, Quantization("fp16")), answer).double()
    costs = np.zeros((2, 3))
    for side, layer in np.ndindex(2, 3):
        chosen = layer, side
        other = forced(model, asked(OneSide(Quantization("focus")), Quantization("focus")), answer).double()
        costs[side, layer] = float((reference.exp() * (reference - other)).sum(dim=-1).mean())
    expected = costs / costs.sum()
    np.testing.assert_allclose(np.stack([shares["key"], shares["value"]]), expected, rtol=0.05, atol=1e-3)


def test_focus_is_told_what_was_measured_where_it_was(
    model: VideoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WQ_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(model, "profile", Profile(tmp_path / "mine.yaml", "mine", "a profile", "demo"))
    prompt = prompts_of(model)[0]

    def policy_for(spec: str) -> Focus:
        made = engine.prepare(model, [prompt], Quantization(spec), room=1).policy
        assert isinstance(made, Focus)
        return made

    assert policy_for("focus")._measured is None
    offline.write(model.profile, "focus", {"key": [1.0, 2.0, 3.0], "value": [3.0, 2.0, 1.0]})
    found = policy_for("focus")._measured
    assert found is not None
    assert found.argsort(axis=0).tolist() == [[0, 2], [1, 1], [2, 0]]
    assert policy_for("focus:layers=equal")._measured is None


def test_the_command_knows_what_can_be_measured() -> None:
    assert set(POLICIES) == set(measurements.MEASUREMENTS) and POLICIES[0] == measurements.DEFAULT
