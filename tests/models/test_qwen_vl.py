"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL through our adapters and cache against transformers' processors, forward, generate.

Rotary positions of time, height and width, frames in pairs and of any size, time stamps, DeepStack.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_qwen_vl import qwen_vl
from transformers.video_utils import VideoMetadata

from wq_cli import decoding, describe, engine
from wq_cli.cache import WindowCache
from wq_cli.codecs import ChannelInWindow
from wq_cli.config import Generation, Quantization
from wq_cli.errors import ModelError
from wq_cli.models import loading
from wq_cli.models.base import Prompt, VideoModel
from wq_cli.placement import VisualTokens

FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
QUESTION, SHORT = "what happens in the video ?", "is there a dog ?"
FPS = 2.0
FULL = Quantization(policy="fp16", window=8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, VideoModel]:
    folders = {family: qwen_vl(tmp_path_factory.mktemp(family), family) for family in FAMILIES}
    return {name: loading.load(str(folder), torch.device("cpu"), "auto") for name, folder in folders.items()}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, models: dict[str, VideoModel]) -> VideoModel:
    chosen = models[request.param]
    # What an earlier `generate` of another prompt leaves on a model; none of it may be used.
    chosen.model.model.rope_deltas = torch.tensor([[1000]])
    return chosen


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (21, 44, 61, 3), dtype=np.uint8)


def processed(model: VideoModel, frames: np.ndarray, question: str = QUESTION, fps: float = FPS):
    """What transformers' processor makes of the same input."""
    return processed_together(model, [(frames, question)], fps)


def processed_together(model: VideoModel, asked: list[tuple[np.ndarray, str]], fps: float = FPS):
    """The same of several clips and questions. A single frame is doubled: Qwen3-VL's processor refuses it."""
    texts = []
    for _, question in asked:
        content = [{"type": "video"}, {"type": "text", "text": question}]
        conversation = [{"role": "user", "content": content}]
        texts.append(model.processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False))
    indices = [[0, 0] if len(frames) == 1 else list(range(len(frames))) for frames, _ in asked]
    return model.processor(
        text=texts,
        videos=[frames[chosen] for (frames, _), chosen in zip(asked, indices, strict=True)],
        video_metadata=[
            VideoMetadata(total_num_frames=len(frames), fps=fps, frames_indices=chosen)
            for (frames, _), chosen in zip(asked, indices, strict=True)
        ],
        do_sample_frames=False,
        padding=True,
        padding_side="left",
        return_tensors="pt",
    )


def prompt_of(model: VideoModel, frames: np.ndarray, question: str = QUESTION, fps: float = FPS) -> Prompt:
    return model.prompt(question, model.encode(frames, np.arange(len(frames)) / fps))


def generated(model: VideoModel, inputs, tokens: int, **kwargs) -> list[list[int]]:
    output = model.model.generate(**inputs, do_sample=False, max_new_tokens=tokens, **kwargs)
    return output[:, inputs["input_ids"].shape[1] :].tolist()


def prefilled(model: VideoModel, prompts: list[Prompt], settings: Quantization, **batching) -> engine.Prefilled:
    return engine.prefill(model, engine.prepare(model, prompts, settings, room=32, **batching))


def answer(model: VideoModel, state: engine.Prefilled, tokens: int = 16) -> list[list[int]]:
    return torch.stack(list(decoding.decode(model, state, Generation(max_new_tokens=tokens))), dim=1).tolist()


def seen_by_decoder(model: VideoModel, inputs) -> dict[str, object]:
    """Arguments that transformers' own forward gives the language model."""
    seen: dict[str, object] = {}
    hook = model.decoder.register_forward_pre_hook(lambda _, args, kwargs: seen.update(kwargs), with_kwargs=True)
    with torch.inference_mode():
        model.model.model(**inputs)
    hook.remove()
    return seen


@pytest.mark.parametrize("size", [(44, 61), (30, 18), (64, 64)])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_prompt_is_the_processors(model: VideoModel, count: int, size: tuple[int, int]) -> None:
    """Tokens, placeholders, embeddings, positions and DeepStack, the tower run in batches of pairs and at once."""
    frames = np.random.default_rng(count).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    inputs = processed(model, frames)
    visual = model.encode(frames, np.arange(count) / FPS)
    prompt = model.prompt(QUESTION, visual)
    assert model.prompt_ids(QUESTION, visual).tolist() == inputs["input_ids"][0].tolist()
    assert torch.equal(prompt.visual_mask, inputs["mm_token_type_ids"][0] == 2)
    seen = seen_by_decoder(model, inputs)
    assert torch.allclose(prompt.embeds, seen["inputs_embeds"][0], atol=1e-4)
    assert torch.equal(prompt.positions, seen["position_ids"][-3:, 0])
    added = seen.get("deepstack_visual_embeds") or []
    assert (prompt.deepstack is not None) == bool(added) == (model.model_type == "qwen3_vl")
    for ours, theirs in zip([] if prompt.deepstack is None else prompt.deepstack, added, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)
    per_pair = len(visual.embeds) // -(-count // 2)
    assert visual.frames.tolist() == np.repeat(np.arange(0, count, 2), per_pair).tolist()
    assert np.array_equal(model.frame_of_tokens(frames, np.arange(count) / FPS), visual.frames)


def test_progress_counts_every_frame_once(model: VideoModel, frames: np.ndarray) -> None:
    counted: list[int] = []
    model.encode(frames, np.arange(len(frames)) / FPS, counted.append)
    assert sum(counted) == len(frames) and len(counted) > 1


@pytest.mark.parametrize("count", [1, 7, 21])
def test_full_precision_gives_generates_tokens(model: VideoModel, frames: np.ndarray, count: int) -> None:
    expected = generated(model, processed(model, frames[:count]), 16)
    model.model.model.rope_deltas = torch.tensor([[1000]])
    state = prefilled(model, [prompt_of(model, frames[:count])], FULL)
    assert answer(model, state) == expected
    assert len(set(expected[0])) > 1, "a model that repeats itself hides wrong positions"


def test_padded_batch_gives_generates_tokens(model: VideoModel, frames: np.ndarray) -> None:
    asked = [(frames[:12], QUESTION), (frames[9:], SHORT)]
    alone = [generated(model, processed(model, clip, question), 12)[0] for clip, question in asked]
    together = generated(model, processed_together(model, asked), 12)
    state = prefilled(model, [prompt_of(model, clip, question) for clip, question in asked], FULL)
    assert state.cache.visual.padding is not None
    with torch.inference_mode():
        logits = model.model(**processed_together(model, asked)).logits[:, -1]
    assert torch.allclose(state.logits, logits, atol=1e-3)
    for row, want, batched in zip(answer(model, state, 12), alone, together, strict=True):
        assert row[: len(want)] == want == batched[: len(want)]


@pytest.mark.parametrize("policy", ["windowquant", "rtn4", "rtn2"])
def test_packed_agrees_with_dequantized(model: VideoModel, frames: np.ndarray, policy: str) -> None:
    """Our engine over packed segments; generate over the same plans, dequantized, in the order of the prompt."""
    state = prefilled(model, [prompt_of(model, frames)], Quantization(policy=policy, window=8))
    inputs = processed(model, frames)
    visual = VisualTokens.from_mask(inputs["input_ids"] == model.video_token_id, 8)
    cache = WindowCache(model.text_config, visual, ChannelInWindow(8), planner=lambda layer: state.plans[layer])
    assert answer(model, state) == generated(model, inputs, 16, past_key_values=cache)
    assert state.cache.visual_bits == cache.visual_bits < 32


def test_packed_padded_batch_agrees_with_dequantized(model: VideoModel, frames: np.ndarray) -> None:
    asked = [(frames[:12], QUESTION), (frames[9:], SHORT)]
    prompts = [prompt_of(model, clip, question) for clip, question in asked]
    state = prefilled(model, prompts, Quantization(policy="rtn4", window=8))
    inputs = processed_together(model, asked)
    mask = inputs["input_ids"] == model.video_token_id
    visual = VisualTokens.from_mask(mask, 8, inputs["attention_mask"].bool())
    cache = WindowCache(model.text_config, visual, ChannelInWindow(8), planner=lambda layer: state.plans[layer])
    for row, want in zip(answer(model, state), generated(model, inputs, 16, past_key_values=cache), strict=True):
        ended = [i + 1 for i, token in enumerate(want) if token in model.eos_ids]
        assert row[: min(ended, default=16)] == want[: min(ended, default=16)]


def test_question_after_cache_and_a_second_one(model: VideoModel, frames: np.ndarray) -> None:
    """At full precision neither is different from a prompt of its own."""
    state = prefilled(model, [prompt_of(model, frames)], FULL, until_visual_end=True)
    end = state.cache.get_seq_length()
    for question in (QUESTION, SHORT, QUESTION):
        prompt = prompt_of(model, frames, question)
        engine.ask_through_cache(model, state, [prompt])
        plain = prefilled(model, [prompt], FULL)
        assert torch.allclose(state.logits, plain.logits, atol=1e-3)
        assert torch.equal(state.position, plain.position)
        assert answer(model, state, 6) == generated(model, processed(model, frames, question), 6)
        engine.rewind(state, state.cache.get_seq_length() - end)


def test_question_after_cache_in_a_batch(model: VideoModel, frames: np.ndarray) -> None:
    asked = [(frames[:12], "is there a dog ?"), (frames[9:], "does it move up ?")]
    prompts = [prompt_of(model, clip, question) for clip, question in asked]
    state = prefilled(model, prompts, FULL, until_visual_end=True)
    engine.ask_through_cache(model, state, prompts)
    with torch.inference_mode():
        logits = model.model(**processed_together(model, asked)).logits[:, -1]
    assert torch.allclose(state.logits, logits, atol=1e-3)
    assert state.position.tolist() == [prompt.next_position for prompt in prompts]


def test_measured_sensitivity_is_eq_9(model: VideoModel, frames: np.ndarray) -> None:
    """Against the residual streams of transformers' own forward, DeepStack's additions included, in float64."""
    entering: list[torch.Tensor] = []
    added: list[torch.Tensor] = []
    hooks = []
    for layer in model.decoder.layers:
        hooks.append(layer.register_forward_pre_hook(lambda _, args: entering.append(args[0].double())))
        hooks.append(layer.self_attn.register_forward_hook(lambda _, args, out: added.append(out[0].double())))
    with torch.inference_mode():
        model.model.model(**processed(model, frames))
    for hook in hooks:
        hook.remove()
    expected = []
    for before, attention in zip(entering, added, strict=True):
        after = before + attention
        cosine = (before * after).sum(-1) / (before.norm(dim=-1) * after.norm(dim=-1))
        expected.append(max(0.0, cosine.mean().item()))
    state = prefilled(model, [prompt_of(model, frames)], Quantization(window=8))
    assert state.sensitivity == pytest.approx(expected, abs=1e-4)


def test_one_layer_at_a_time_holds_full_precision(model: VideoModel, frames: np.ndarray) -> None:
    request = engine.prepare(model, [prompt_of(model, frames)], Quantization(policy="rtn2", window=8), room=8)
    layers = request.cache.layers
    held: list[int] = []
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda *_: held.append(sum(c.keys is not None for c in layers))
        )
        for layer in model.decoder.layers
    ]
    engine.prefill(model, request)
    for hook in hooks:
        hook.remove()
    assert held == [1] * len(layers)


def test_text_counts_on_from_the_larger_side(models: dict[str, VideoModel], frames: np.ndarray) -> None:
    """By hand: 21 frames are 11 pairs of 3 x 5 merged patches, so that time has more positions than a frame is wide."""
    prompt = prompt_of(models["qwen2_vl"], frames)
    first = int(prompt.visual_mask.nonzero().min())
    time, height, width = prompt.positions[:, prompt.visual_mask] - first
    assert torch.equal(time, torch.arange(11).repeat_interleave(15))
    assert torch.equal(height, torch.arange(3).repeat_interleave(5).repeat(11))
    assert torch.equal(width, torch.arange(5).repeat(33))
    after = prompt.positions[:, prompt.visual_end :]
    assert torch.equal(after, (first + 5 + torch.arange(after.shape[1])).expand(3, -1))
    assert prompt.next_position == first + 5 + after.shape[1]


@pytest.mark.parametrize(("fps", "step"), [(2.0, 2), (0.5, 8)])
def test_qwen2_5_positions_follow_the_seconds(
    models: dict[str, VideoModel], frames: np.ndarray, fps: float, step: int
) -> None:
    """Two positions a second; a pair of frames lasts 2 / fps seconds."""
    prompt = prompt_of(models["qwen2_5_vl"], frames[:8], fps=fps)
    time = prompt.positions[0, prompt.visual_mask]
    assert (time.unique() - time.min()).tolist() == [0, step, 2 * step, 3 * step]


def test_qwen3_time_stamps_are_the_frames_own(models: dict[str, VideoModel], frames: np.ndarray) -> None:
    """Frames at uneven times: the stamp of a pair is its middle, that of a last frame alone is its own time."""
    model = models["qwen3_vl"]
    visual = model.encode(frames[:5], np.array([0.5, 1.5, 4.0, 4.2, 61.26]))
    ids = model.prompt_ids(QUESTION, visual)
    words = [model.processor.tokenizer.decode(i) for i in ids.tolist()]
    stamps = ["".join(words[i : words.index(">", i) + 1]) for i, word in enumerate(words) if word == "<"]
    assert stamps == ["<1.0seconds>", "<4.1seconds>", "<61.3seconds>"]
    prompt = model.prompt(QUESTION, visual)
    assert int(prompt.visual_mask.sum()) == len(visual.embeds), "no stamp is in a window"
    runs = 1 + int((torch.diff(prompt.visual_mask.nonzero()[:, 0]) > 1).sum())
    assert runs == len(stamps), "each pair is a run of its own"


def test_qwen3_frames_share_the_pixels_of_the_clip(models: dict[str, VideoModel], frames: np.ndarray) -> None:
    few, many = (models["qwen3_vl"].encode(frames[:n], np.arange(n) / FPS) for n in (8, 21))
    assert many.grid[1] * many.grid[2] < few.grid[1] * few.grid[2]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl"])
def test_sliding_windows_are_refused(tmp_path, frames: np.ndarray, family: str) -> None:
    model = loading.load(str(qwen_vl(tmp_path, family, sliding_window=32)), torch.device("cpu"), "auto")
    state = prefilled(model, [prompt_of(model, frames)], FULL)
    with pytest.raises(ModelError, match="sees the last 32 tokens only"):
        answer(model, state, 2)


def test_a_window_of_pairs_ends_with_the_second_frame(models: dict[str, VideoModel], frames: np.ndarray) -> None:
    """7 frames of a second each, in windows of a pair: 0 to 2, 2 to 4, 4 to 6, and the last frame alone."""
    visual = models["qwen2_vl"].encode(frames[:7], np.arange(7.0))
    settings = Quantization(window=len(visual.embeds) // 4)
    nothing = np.full((1, 4), np.nan)
    clip = SimpleNamespace(frames=frames[:7], span_seconds=np.stack([np.arange(7.0), np.arange(1.0, 8.0)], axis=1))
    rows = describe.windows(clip, visual, SimpleNamespace(similarity=nothing, relevance=nothing), [], settings)
    assert [(row.first_frame, row.last_frame) for row in rows] == [(0, 1), (2, 3), (4, 5), (6, 6)]
    assert [(row.start_seconds, row.end_seconds) for row in rows] == [(0, 2), (2, 4), (4, 6), (6, 7)]
