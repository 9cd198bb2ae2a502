"""Decoding step by step: places counted on the device, and steps launched ahead, against a loop over `extend`."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision

import wq_kernels
from wq_cli import decoding, engine
from wq_cli.config import Generation, Quantization
from wq_cli.models import loading
from wq_cli.models.base import VideoModel

STEPS = 9
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    folder = llava_onevision(tmp_path_factory.mktemp("onevision"), heads=7, kv_heads=1, head_dim=64)
    on_gpu = request.param == "cuda"
    return loading.load(str(folder), torch.device(request.param), "float16" if on_gpu else "float32")


def prefilled(model: VideoModel, policy: str, questions: list[str], room: int = 64) -> engine.Prefilled:
    frames = np.random.default_rng(0).integers(0, 256, (23, 40, 52, 3), dtype=np.uint8)
    prompts = [model.prompt(question, model.encode(frames, np.arange(23) / 2.0)) for question in questions]
    return engine.prefill(model, engine.prepare(model, prompts, Quantization(policy=policy), room=room))


@pytest.fixture(params=[False, True], ids=["in turn", "ahead"])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a step is launched before the token that it starts from is looked at, whatever the device."""
    monkeypatch.setattr(decoding.Step, "is_graph", request.param)
    return bool(request.param)


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("questions", [["what happens ?"], ["what happens ?", "is there a dog in the video ?"]])
@pytest.mark.parametrize("policy", ["fp16", "windowquant", "rtn2"])
def test_steps_give_the_tokens_of_a_loop_over_extend(model: VideoModel, policy: str, questions: list[str]) -> None:
    """The second way appends with slices and numbers known to the host; the first must not depend on the room left."""
    stepped = prefilled(model, policy, questions, room=2)
    tokens = torch.stack(list(decoding.decode(model, stepped, Generation(max_new_tokens=STEPS), False)), dim=1)
    assert tokens.device.type == "cpu"
    looped = prefilled(model, policy, questions)
    expected = [looped.logits.argmax(dim=-1)]
    for _ in range(STEPS - 1):
        logits = engine.extend(model, looped, model.embed(expected[-1])[:, None])
        expected.append(logits.argmax(dim=-1))
    assert tokens.tolist() == torch.stack(expected, dim=1).tolist()
    for layer, other in zip(stepped.cache.layers, looped.cache.layers, strict=True):
        assert (layer.length, layer.raw_length) == (other.length, other.raw_length)
        assert layer.cursor is None
    assert stepped.position.tolist() == looped.position.tolist()
    if model.device.type == "cpu":
        assert stepped.graph == "step by step, on cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_steps_are_one_graph(model: VideoModel, temperature: float) -> None:
    """Replays give what eager steps give, drawn with the same seed; what cannot be recorded says so."""
    if model.device.type != "cuda":
        pytest.skip("graphs are CUDA's")
    how = Generation(max_new_tokens=STEPS, temperature=temperature, seed=3)
    state = prefilled(model, "windowquant", ["what happens ?"])
    tokens = [int(token) for token in decoding.decode(model, state, how, False)]
    assert state.graph == "CUDA graph"
    eager = prefilled(model, "windowquant", ["what happens ?"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "obstacle", lambda *_: "asked not to")
        assert [int(token) for token in decoding.decode(model, eager, how, False)] == tokens
    assert eager.graph == "asked not to"
    with wq_kernels.use_backend("torch"):
        plain = prefilled(model, "windowquant", ["what happens ?"])
        assert len(list(decoding.decode(model, plain, how, False))) == STEPS
    assert plain.graph == "step by step, since the cache runs in PyTorch: asked for"


@pytest.mark.usefixtures("ahead")
def test_what_follows_an_answer_goes_on_from_it(model: VideoModel) -> None:
    """After the steps the cache takes many tokens at once again, at the right places."""
    state = prefilled(model, "rtn4", ["what happens ?"])
    tokens = torch.stack(list(decoding.decode(model, state, Generation(max_new_tokens=4), False)), dim=1)
    tokens = tokens.to(model.device)
    more = engine.extend(model, state, model.embed(tokens[:, -1:].repeat(1, 3)), last_only=False)
    other = prefilled(model, "rtn4", ["what happens ?"])
    row = torch.cat([tokens[:, :-1], tokens[:, -1:].repeat(1, 3)], dim=1)
    expected = engine.extend(model, other, model.embed(row), last_only=False)[:, -3:]
    assert (more - expected).norm() < (1e-5 if model.device.type == "cpu" else 2e-2) * expected.norm()


def by_hand(model: VideoModel, state: engine.Prefilled, how: Generation, ends: list[int]) -> list[list[int]]:
    """Tokens of every row, one list a step: each is looked at before the next step."""
    generator = torch.Generator(model.device).manual_seed(how.seed)
    logits, steps = state.logits, []
    while True:
        token = logits.argmax(dim=-1)
        if how.temperature:
            odds = (logits / how.temperature).softmax(dim=-1)
            token = torch.multinomial(odds, 1, generator=generator)[:, 0]
        before = steps[-1] if steps else [-1] * len(token)
        steps.append([old if old in ends else new for old, new in zip(before, token.tolist(), strict=True)])
        if len(steps) == how.max_new_tokens or set(steps[-1]) <= set(ends):
            return steps
        logits = engine.extend(model, state, model.embed(torch.tensor(steps[-1], device=model.device))[:, None])


def content(state: engine.Prefilled) -> list[torch.Tensor]:
    """What the layers hold beside their segments, in use."""
    return [run[:, :, : layer.raw_length] for layer in state.cache.layers for run in layer.run]


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("most", "read", "places"),
    [
        (1, 1, (5, 2)),
        (2, 2, (5, 2)),
        (STEPS, STEPS, (5, 2)),
        (STEPS, STEPS, (0, 0)),
        (STEPS, 1, (5, 2)),
        (4, 3, (7, 8)),
    ],
    ids=["one", "two", "rows end apart", "rows end at once", "closed at the first", "closed before the last"],
)
def test_what_was_launched_too_early_leaves_no_trace(
    model: VideoModel,
    temperature: float,
    most: int,
    read: int,
    places: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens, cache and the answer to a question that follows, with two rows that end where a free answer was."""
    questions = ["what happens ?", "is there a dog in the video ?"]
    how = Generation(max_new_tokens=STEPS, temperature=temperature, seed=3)
    free = by_hand(model, prefilled(model, "windowquant", questions), how, [])
    ends = [free[place][row] for row, place in enumerate(places)]
    monkeypatch.setattr(model.model.generation_config, "eos_token_id", ends)

    expected = prefilled(model, "windowquant", questions)
    spoken = by_hand(model, expected, Generation(min(most, read), temperature, how.seed), ends)
    state = prefilled(model, "windowquant", questions)
    steps = decoding.decode(model, state, Generation(most, temperature, how.seed))
    assert [token.tolist() for token in islice(steps, read)] == spoken
    steps.close()
    assert len(spoken) < STEPS

    close = 1e-5 if model.device.type == "cpu" else 2e-2
    for layer, other in zip(state.cache.layers, expected.cache.layers, strict=True):
        assert (layer.length, layer.raw_length, layer.cursor) == (other.length, other.raw_length, None)
    assert state.position.tolist() == expected.position.tolist()
    for held, wanted in zip(content(state), content(expected), strict=True):
        assert (held - wanted).norm() < close * wanted.norm()

    asked = model.embed(torch.tensor([[8, 9, 10, 11], [12, 9, 13, 11]], device=model.device))
    for each in (state, expected):
        each.logits = engine.extend(model, each, asked)
    again = [token.tolist() for token in decoding.decode(model, state, how, False)]
    assert again == by_hand(model, expected, how, [])


@pytest.mark.parametrize("close_after", [None, 3])
def test_both_orders_leave_the_same_bits(model: VideoModel, close_after: int | None) -> None:
    """The run beyond its end may differ, nothing else."""
    found = []
    for runs_ahead in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding.Step, "is_graph", runs_ahead)
            state = prefilled(model, "rtn4", ["what happens ?"])
            steps = decoding.decode(model, state, Generation(max_new_tokens=STEPS), False)
            tokens = [int(token) for token in islice(steps, close_after)]
            steps.close()
        found.append((tokens, state))
    (tokens, state), (others, other) = found
    assert tokens == others
    assert all(torch.equal(*held) for held in zip(content(state), content(other), strict=True))
    assert torch.equal(state.position, other.position)


def test_at_most_one_step_is_ahead(model: VideoModel, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token comes out while one more step runs, or before it is launched; none is launched past the most."""
    launched = []
    step = decoding.Step.__call__
    monkeypatch.setattr(decoding.Step, "__call__", lambda self: launched.append(self) or step(self))
    state = prefilled(model, "rtn4", ["what happens ?"])
    seen = [len(launched) for _ in decoding.decode(model, state, Generation(max_new_tokens=5), False)]
    assert seen == ([1, 2, 3, 4, 4] if ahead else [0, 1, 2, 3, 4])


def test_only_a_graph_runs_ahead(model: VideoModel) -> None:
    """Steps that the host computes or launches one by one cost as much as they take."""
    state, ways = prefilled(model, "rtn4", ["what happens ?"]), []
    step = decoding.Step(model, state, Generation(max_new_tokens=4), False)
    with torch.inference_mode(), state.cache.stepping(3):
        for _ in range(3):
            ways.append(step.is_graph)
            step()
    assert ways == [False, False, model.device.type == "cuda"]
