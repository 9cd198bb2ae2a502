"""Training batches as arrays: worlds for the renderer, and all questions of a clip packed into one text stretch.

Layout of one sequence: [<|im_start|> user, visual tokens, newline | question 1, answer 1 | question 2, answer 2 | ...].
Every question sees the part before the first bar and itself, and counts its positions from the end of the video, so
that it is computed exactly as if it stood alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from wq_cli.scenes.model import TOKENS_PER_FRAME
from wq_cli.scenes.questions import FAMILIES, Question, questions
from wq_cli.scenes.things import COLOURS, EMOJI, SHAPES, plural
from wq_cli.scenes.words import EVERYDAY
from wq_cli.scenes.world import TRAINING_SEEDS, FrameArrays, World, frame_times, generate, sample

IGNORED = -100
CONTENT_WORDS = (*EMOJI, *SHAPES, *COLOURS, *(plural(noun) for noun in (*EMOJI, *SHAPES)))

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Shape:
    """Sizes of a batch; every batch of one number of frames has the same."""

    clips: int
    frames: int
    text_tokens: int
    questions: int

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the first question: two of the chat template, the video, its newline."""
        return 2 + TOKENS_PER_FRAME * self.frames + 1


class Packer:
    """Turns questions into token arrays with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        ids = tokenizer.convert_tokens_to_ids
        self.before_answer: list[int] = ids(["<|im_end|>", "<|im_start|>", "assistant"])
        self.end: int = ids("<|im_end|>")
        self.fillers: list[int] = [ids("<unk>"), *ids(list(EVERYDAY))]
        self.content_ids: list[int] = ids(list(CONTENT_WORDS))

    @cached_property
    def _content_index(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(CONTENT_WORDS)}

    def batch(
        self, clips: Sequence[tuple[World, Sequence[Question]]], shape: Shape, noise: Random | None = None
    ) -> Batch:
        """Arrays of a batch; questions that do not fit the shape are left out.

        Args:
            clips: `shape.clips` worlds with their questions.
            noise: Sprinkles meaningless everyday words over the questions.

        Returns:
            The fields of `FrameArrays` with frames of all clips in one row [clips * F, ...], and
            ids, segment (1, 2, ... per question, -1 padding), position, label (the next token where it is part of an
            answer, else -100) [clips, T] int64; weight [clips, T] float32 (an answer of n tokens weighs sqrt(n));
            typed [clips, T] bool (text as the person typed it); family [clips, Q] int64 (-1: no question);
            relevant [clips, Q, F] bool; ranked [clips, Q] bool (some frames are relevant and some are not);
            shown [clips * F, len(CONTENT_WORDS)] bool.
        """
        count, text, most = shape.clips, shape.text_tokens, shape.questions
        arrays: Batch = {
            "ids": np.zeros((count, text), np.int64),
            "segment": np.full((count, text), -1, np.int64),
            "position": np.zeros((count, text), np.int64),
            "label": np.full((count, text), IGNORED, np.int64),
            "weight": np.zeros((count, text), np.float32),
            "typed": np.zeros((count, text), np.bool_),
            "family": np.full((count, most), -1, np.int64),
            "relevant": np.zeros((count, most, shape.frames), np.bool_),
            "shown": np.zeros((count, shape.frames, len(CONTENT_WORDS)), np.bool_),
        }
        drawn: list[FrameArrays] = []
        for row, (world, asked) in enumerate(clips):
            times = frame_times(world.seconds, shape.frames)
            drawn.append(sample(world, times))
            self._write_questions({name: array[row] for name, array in arrays.items()}, asked, shape, times, noise)
            self._write_shown(arrays["shown"][row], world, times)
        relevant = arrays["relevant"]
        arrays["ranked"] = np.logical_and(relevant.any(-1), ~relevant.all(-1))
        arrays["shown"] = arrays["shown"].reshape(-1, len(CONTENT_WORDS))
        for field in fields(FrameArrays):
            arrays[field.name] = np.concatenate([getattr(frames, field.name) for frames in drawn])
        return arrays

    def _write_questions(
        self, row: Batch, asked: Sequence[Question], shape: Shape, times: NDArray[np.float64], noise: Random | None
    ) -> None:
        start = used = 0
        typed_ids = self.tokenizer([question.text for question in asked], add_special_tokens=False)["input_ids"]
        answer_ids = self.tokenizer([question.answer for question in asked], add_special_tokens=False)["input_ids"]
        for question, typed, answer in zip(asked, typed_ids, answer_ids, strict=True):
            if noise is not None and noise.random() < 0.2:
                for _ in range(noise.randint(1, 2)):
                    typed.insert(noise.randint(0, len(typed)), noise.choice(self.fillers))
            tokens = [*typed, *self.before_answer, *answer, self.end]
            stop = start + len(tokens)
            if stop > shape.text_tokens or used == shape.questions:
                break
            first = stop - len(answer) - 2  # this token predicts the answer's first
            row["ids"][start:stop] = tokens
            row["segment"][start:stop] = used + 1
            row["position"][start:stop] = shape.prefix_tokens + np.arange(len(tokens))
            row["label"][first : stop - 1] = tokens[-len(answer) - 1 :]
            row["weight"][first : stop - 1] = (len(answer) + 1) ** -0.5
            row["typed"][start : start + len(typed)] = True
            row["family"][used] = FAMILY_INDEX[question.family]
            for begin, end in question.relevant:
                row["relevant"][used] |= (times >= begin) & (times < end)
            start, used = stop, used + 1

    def _write_shown(self, shown: NDArray[np.bool_], world: World, times: NDArray[np.float64]) -> None:
        for scene in world.scenes:
            for actor in scene.actors:
                begin, end = scene.visible_seconds(actor)
                rows = (times >= begin) & (times < end)
                head = actor.noun.split()[-1]
                for word in (head, plural(head)):
                    shown[rows, self._content_index[word]] = True
                if actor.colour:
                    change = scene.start_seconds + actor.onset * (scene.end_seconds - scene.start_seconds)
                    after = times >= (change if actor.colour_after else np.inf)
                    shown[rows & ~after, self._content_index[actor.colour]] = True
                    shown[rows & after, self._content_index[actor.colour_after or actor.colour]] = True


FAMILY_INDEX = {family: index for index, family in enumerate(FAMILIES)}


def training_seed(seed: int, step: int, clip: int) -> int:
    """A seed of `TRAINING_SEEDS` for one clip of one step."""
    return Random(f"{seed} {step} {clip}").randrange(len(TRAINING_SEEDS))


def training_clips(
    seed: int, step: int, shape: Shape, difficulty: float, weights: Mapping[str, float]
) -> list[tuple[World, list[Question]]]:
    """Worlds and questions of one training step."""
    clips = []
    for clip in range(shape.clips):
        rng = Random(training_seed(seed, step, clip))
        made_for = min(shape.frames, rng.choice((16, shape.frames)))
        level = difficulty if rng.random() < 0.8 else difficulty * rng.random()
        world = generate(rng.randrange(len(TRAINING_SEEDS)), frames=made_for, difficulty=level)
        clips.append((world, questions(world, rng.randrange(2**48), shape.questions, weights)))
    return clips
