"""Scores a saved demo model on held-out questions: `python -m wq_cli.scenes.evaluate DIR`."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wq_cli.scenes import WEIGHTS
from wq_cli.scenes.batches import Packer, Shape
from wq_cli.scenes.model import TOKENS_PER_FRAME, load
from wq_cli.scenes.objective import Objective
from wq_cli.scenes.questions import FAMILIES
from wq_cli.scenes.suite import QUESTIONS_PER_CLIP, specifications

WINDOW_TOKENS = 32
TEXT_TOKENS = 485


@torch.inference_mode()
def evaluate(
    objective: Objective, packer: Packer, frames: int, questions: int, seed: int = 0, frames_per_batch: int = 1600
) -> dict[str, Any]:
    """Accuracy by family and AUC of eq 8 on held-out questions.

    An answer counts when every token of it is the most likely one given those before, which is exactly when greedy
    decoding writes it.

    Args:
        objective: In evaluation mode, on the device to use.
        frames: Frames per clip.
        questions: Number of questions.

    Returns:
        `accuracy` over all questions, `families` {family: accuracy}, `auc`: mean over questions, by window of 32 visual
        tokens, of the chance that a window showing the asked thing scores above one that does not.
    """
    device = objective.content_ids.device
    asked: Counter[int] = Counter()
    right: Counter[int] = Counter()
    areas: list[float] = []
    clips = specifications(questions, seed)
    while group := list(islice(clips, max(1, frames_per_batch // frames))):
        shape = Shape(len(group), frames, TEXT_TOKENS, QUESTIONS_PER_CLIP)
        batch = {name: torch.from_numpy(array).to(device) for name, array in packer.batch(group, shape).items()}
        result = objective(batch, shape, objective.draw(batch, shape, vary=False))
        for family, hit in zip(batch["family"].flatten().tolist(), result.right[:, 1:].flatten().tolist(), strict=True):
            if family >= 0:
                asked[family] += 1
                right[family] += hit
        scores = result.question_features @ result.frame_features.transpose(1, 2)
        areas += window_aucs(scores.cpu(), batch["relevant"].cpu())
    assert asked.total() == questions, "a question did not fit its batch"
    return {
        "frames": frames,
        "questions": questions,
        "accuracy": right.total() / questions,
        "families": {name: right[i] / max(asked[i], 1) for i, name in enumerate(FAMILIES)},
        "auc": sum(areas) / max(len(areas), 1),
    }


def window_aucs(scores: Tensor, relevant: Tensor) -> list[float]:
    """Area under the ROC curve of each question that has windows of both kinds.

    Args:
        scores: [clips, Q, F] eq 8 by frame; a window's score is the mean over its frames.
        relevant: [clips, Q, F] bool; a window is relevant when one of its frames is.
    """
    size = WINDOW_TOKENS // TOKENS_PER_FRAME
    whole = scores.shape[-1] // size * size
    by_window = scores[..., :whole].reshape(-1, whole // size, size).mean(-1)
    wanted = relevant[..., :whole].reshape(-1, whole // size, size).any(-1)
    areas = []
    for score, mask in zip(by_window, wanted, strict=True):
        inside, outside = score[mask], score[~mask]
        if len(inside) and len(outside):
            gap = inside[:, None] - outside[None]
            areas.append(((gap > 0).float() + 0.5 * (gap == 0)).mean().item())
    return areas


def open_objective(path: Path, device: torch.device) -> tuple[Objective, Packer]:
    """A saved model ready to be scored, in float32."""
    model, tokenizer = load(path)
    packer = Packer(tokenizer)
    prefix = tokenizer.convert_tokens_to_ids(["<|im_start|>", "user"])
    return Objective(model, packer.content_ids, prefix).eval().to(device), packer


def table(rows: list[dict[str, Any]]) -> str:
    """One line per number of frames."""
    head = f"{'frames':>6} {'all':>6} {'AUC':>6} " + " ".join(f"{name:>5}" for name in FAMILIES)
    lines = [
        f"{row['frames']:>6} {row['accuracy']:>6.3f} {row['auc']:>6.3f} "
        + " ".join(f"{row['families'][name]:>5.2f}" for name in FAMILIES)
        for row in rows
    ]
    return "\n".join([head, *lines])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=WEIGHTS)
    parser.add_argument("--frames", type=int, nargs="+", default=[16, 32, 100])
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    objective, packer = open_objective(options.model, torch.device(options.device))
    start = time.perf_counter()
    rows = [evaluate(objective, packer, frames, options.questions, options.seed) for frames in options.frames]
    print(table(rows))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
