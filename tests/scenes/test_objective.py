"""Packed questions are computed as if each stood alone, and their losses are the textbook ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from wq_cli.scenes.batches import CONTENT_WORDS, IGNORED, Packer, Shape
from wq_cli.scenes.evaluate import window_aucs
from wq_cli.scenes.model import visual_features
from wq_cli.scenes.objective import Objective, Result
from wq_cli.scenes.questions import Question, questions
from wq_cli.scenes.world import World, generate

FRAMES = 8


@pytest.fixture(scope="module")
def clips() -> list[tuple[World, list[Question]]]:
    worlds = [generate(seed, frames=FRAMES) for seed in (11, 12)]
    return [(world, questions(world, world.seed, 5)) for world in worlds]


@pytest.fixture(scope="module")
def packed(untrained: tuple[Any, Any], clips: Any) -> tuple[Objective, dict[str, torch.Tensor], Shape, torch.Tensor]:
    model, tokenizer = untrained
    packer = Packer(tokenizer)
    shape = Shape(len(clips), FRAMES, 245, 5)
    batch = {name: torch.from_numpy(array) for name, array in packer.batch(clips, shape).items()}
    objective = Objective(model, packer.content_ids, tokenizer.convert_tokens_to_ids(["<|im_start|>", "user"]))
    return objective, batch, shape, objective.draw(batch, shape, vary=False)


@pytest.fixture(scope="module")
def result(packed: Any) -> Result:
    objective, batch, shape, frames = packed
    with torch.no_grad():
        return objective(batch, shape, frames)


def _prompt(processor_tokenizer: Any, frames: int, question: Question) -> list[int]:
    """Token ids of the chat template, written out by hand."""
    text = f"<|im_start|>user\n{'<video>' * (16 * frames + 1)}\n{question.text}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = processor_tokenizer(text)["input_ids"]
    return ids


def test_packed_questions_equal_separate_prompts(untrained: Any, clips: Any, packed: Any, result: Result) -> None:
    model, tokenizer = untrained
    _, _, shape, frames = packed
    for row, (_, asked) in enumerate(clips):
        video = frames.view(shape.clips, FRAMES, 3, 64, 64)[row : row + 1]
        for column, question in enumerate(asked):
            prompt = _prompt(tokenizer, FRAMES, question)
            answer = [*tokenizer(question.answer)["input_ids"], tokenizer.eos_token_id]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + answer]), pixel_values_videos=video).logits[0]
            expected = F.cross_entropy(logits[len(prompt) - 1 : -1], torch.tensor(answer))
            torch.testing.assert_close(result.question_loss[row, column + 1], expected, rtol=1e-4, atol=1e-4)


def test_right_means_that_greedy_decoding_writes_the_answer(untrained: Any, packed: Any, clips: Any) -> None:
    """The head is solved so that it answers two questions rightly, and the third but for its last word."""
    trained, tokenizer = untrained
    model = copy.deepcopy(trained)
    frames = packed[3][:FRAMES]
    told = [("is there a dog?", "yes"), ("what happens?", "two cats jump."), ("what is it?", "a red star")]
    written = [answer for _, answer in told[:2]] + ["a red circle"]
    asked = [Question("FA", text, answer, ("", "")) for text, answer in told]

    prompts = [_prompt(tokenizer, FRAMES, question) for question in asked]
    targets = [[*tokenizer(answer)["input_ids"], tokenizer.eos_token_id] for answer in written]
    states = []
    for prompt, target in zip(prompts, targets, strict=True):
        ids = torch.tensor([prompt + target])
        with torch.no_grad():
            hidden = model.model(input_ids=ids, pixel_values_videos=frames[None]).last_hidden_state[0]
        states.append(hidden[len(prompt) - 1 : -1])
    wanted = F.one_hot(torch.cat([torch.tensor(target) for target in targets]), len(tokenizer)).double()
    head = torch.nn.Linear(256, len(tokenizer), bias=False)
    head.weight.data = torch.linalg.lstsq(torch.cat(states).double(), wanted).solution.T.float()
    model.lm_head = head

    for prompt, target in zip(prompts, targets, strict=True):
        out = model.generate(input_ids=torch.tensor([prompt]), pixel_values_videos=frames[None], max_new_tokens=8)
        assert out[0, len(prompt) :].tolist() == target
    shape = Shape(1, FRAMES, 245, 3)
    batch = {name: torch.from_numpy(a) for name, a in Packer(tokenizer).batch([(clips[0][0], asked)], shape).items()}
    with torch.no_grad():
        result = Objective(model, packed[0].content_ids.tolist(), packed[0].prefix_ids.tolist())(batch, shape, frames)
    assert result.right[0, 1:].tolist() == [True, True, False]


def test_visual_features_equal_transformers(untrained: Any, packed: Any) -> None:
    model, _ = untrained
    _, _, shape, frames = packed
    with torch.no_grad():
        output = model.model.get_video_features(frames.view(shape.clips, FRAMES, 3, 64, 64)).pooler_output
        ours = visual_features(model, frames).view(shape.clips, 16 * FRAMES, -1)
    torch.testing.assert_close(ours, output.view(shape.clips, -1, ours.shape[-1])[:, : 16 * FRAMES])


def test_labels_are_the_answers_and_nothing_else(untrained: Any, packed: Any, clips: Any) -> None:
    _, tokenizer = untrained
    _, batch, _, _ = packed
    for row, (_, asked) in enumerate(clips):
        for column, question in enumerate(asked):
            mine = batch["segment"][row] == column + 1
            label = batch["label"][row][mine]
            assert tokenizer.decode(label[label != IGNORED][:-1]) == tokenizer.decode(
                tokenizer(question.answer)["input_ids"]
            )
            assert int(batch["position"][row][mine][0]) == 2 + 16 * FRAMES + 1


def test_eq8_features_are_means_of_normalised_rows(untrained: Any, packed: Any, clips: Any, result: Result) -> None:
    model, tokenizer = untrained
    frames = packed[3]
    with torch.no_grad():
        tokens = visual_features(model, frames[:FRAMES]).double()
        ids = torch.tensor(tokenizer(clips[0][1][0].text)["input_ids"])
        words = model.get_input_embeddings()(ids).double()
    expected = (words / words.norm(dim=-1, keepdim=True)).mean(0)
    torch.testing.assert_close(result.question_features[0, 0].double(), expected, rtol=1e-5, atol=1e-6)
    expected = (tokens / tokens.norm(dim=-1, keepdim=True)).mean(1)
    torch.testing.assert_close(result.frame_features[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_shown_words_follow_the_clip(packed: Any, clips: Any) -> None:
    _, batch, shape, _ = packed
    shown = batch["shown"].view(shape.clips, FRAMES, -1)
    for row, (world, _) in enumerate(clips):
        words = {CONTENT_WORDS[i] for i in shown[row].any(0).nonzero().flatten().tolist()}
        for _, actor in world.cast():
            assert set(actor.noun.split()) <= words


def test_window_auc_by_hand() -> None:
    scores = torch.tensor([[[0.9, 0.7, 0.1, 0.3, 0.5, 0.5, 0.2, 0.2, 9.0]]])  # windows 0.8 0.2 0.5 0.2, tail left out
    relevant = torch.tensor([[[1, 0, 0, 0, 0, 0, 1, 1, 0]]]).bool()  # windows 0 and 3
    # Pairs: 0.8 beats 0.2 and 0.5; 0.2 ties with 0.2 and loses to 0.5.
    assert window_aucs(scores, relevant) == [pytest.approx(2.5 / 4)]
