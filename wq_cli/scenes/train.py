"""Trains the demo model for some minutes: `python -m wq_cli.scenes.train --minutes 8.3 --out DIR [--resume DIR]`.

Worlds and questions come from worker processes, frames are drawn on the device. On a GPU the whole step, drawing to
optimizer, is one CUDA graph per number of frames: launching kernel by kernel would take longer than running them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from torch import Tensor

from wq_cli.scenes.batches import Batch, Packer, Shape, training_clips
from wq_cli.scenes.evaluate import evaluate, open_objective, table
from wq_cli.scenes.model import build, load, save
from wq_cli.scenes.objective import Objective
from wq_cli.scenes.optimizer import MuonAdamW
from wq_cli.scenes.questions import FAMILIES

# Share of steps per number of frames, by progress of a first stretch; a resumed one uses the last row throughout.
FRAME_MIXES = (
    (0.30, {16: 0.6, 24: 0.4}),
    (0.60, {16: 0.45, 24: 0.3, 32: 0.25}),
    (1.01, {8: 0.05, 16: 0.3, 24: 0.2, 32: 0.2, 64: 0.125, 100: 0.125}),
)
EASY_PART = 0.25
SAVE_SECONDS = 110.0
LOG_SECONDS = 20.0
IN_FLIGHT = 2


@dataclass(frozen=True)
class Recipe:
    """What a stretch depends on besides the code.

    Attributes:
        frames_per_step: Frames drawn per step; clips per step follow from the frames per clip.
        peak_rate: Learning rate after warm-up; falls linearly to zero at the end of the stretch.
        align_start, align_end: Weight of both alignment losses at the start and from a quarter on (first stretch), or
            `align_end` throughout (resumed).
    """

    minutes: float
    seed: int = 0
    steps: int | None = None
    frames_per_step: int = 2048
    peak_rate: float = 2e-3
    warm_up_part: float = 0.03
    align_start: float = 1.0
    align_end: float = 0.3
    evaluation_seconds: float = 45.0
    evaluation_questions: int = 2000
    workers: int = 14


def shape_for(frames: int, frames_per_step: int) -> Shape:
    """Batch sizes for clips of `frames` frames; long clips are asked more. Total length is a multiple of 8."""
    text, questions = (245, 12) if frames < 64 else (485, 24)
    return Shape(max(1, frames_per_step // frames), frames, text, questions)


class Producer:
    """Batches in order of steps, made ahead of time by worker processes."""

    def __init__(self, packer: Packer, recipe: Recipe, first_step: int) -> None:
        global _packer
        _packer = packer  # inherited by the forked workers
        self.recipe = recipe
        self.step = first_step
        self.pool = ProcessPoolExecutor(recipe.workers, mp_context=multiprocessing.get_context("fork"))
        self.ahead: deque[Future[Batch]] = deque()

    def fill(self, mix: dict[int, float], difficulty: float, weights: dict[str, float]) -> None:
        """Orders batches up to three per worker ahead."""
        while len(self.ahead) < 3 * self.recipe.workers:
            frames = Random(f"{self.recipe.seed} {self.step}").choices(list(mix), list(mix.values()))[0]
            shape = shape_for(frames, self.recipe.frames_per_step)
            order = (self.recipe.seed, self.step, shape, difficulty, weights)
            self.ahead.append(self.pool.submit(_make_batch, *order))
            self.step += 1

    def next(self) -> dict[str, Tensor]:
        """The next step's batch."""
        return {name: torch.from_numpy(array) for name, array in self.ahead.popleft().result().items()}

    def close(self) -> None:
        """Drops what was ordered and ends the workers."""
        self.pool.shutdown(wait=True, cancel_futures=True)


_packer: Packer


def _make_batch(seed: int, step: int, shape: Shape, difficulty: float, weights: dict[str, float]) -> Batch:
    clips = training_clips(seed, step, shape, difficulty, weights)
    return _packer.batch(clips, shape, noise=Random(f"noise {seed} {step}"))


class Stepper:
    """Runs training steps, eagerly on a CPU and as CUDA graphs on a GPU.

    Attributes:
        align: Scalar tensor, weight of the alignment losses.
        families: [families, 3] sums of questions, right answers, loss.
        losses: [4] sums of steps, answer, word and rank loss.
    """

    def __init__(self, objective: Objective, device: torch.device) -> None:
        self.objective = objective
        self.device = device
        self.optimizer = MuonAdamW(objective, device)
        self.align = torch.zeros((), device=device)
        self.families = torch.zeros(len(FAMILIES) + 1, 3, device=device)
        self.losses = torch.zeros(4, device=device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]] = {}
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def run(self, batch: dict[str, Tensor], shape: Shape) -> None:
        """One update."""
        if self.device.type != "cuda":
            self._clear()
            self._step(batch, shape)
            return
        if shape.frames not in self.graphs:
            self.graphs[shape.frames] = self._capture(batch, shape)
        graph, inputs = self.graphs[shape.frames]
        for name, tensor in batch.items():
            inputs[name].copy_(tensor.pin_memory(), non_blocking=True)
        graph.replay()

    def _capture(self, batch: dict[str, Tensor], shape: Shape) -> tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]:
        inputs = {name: tensor.to(self.device) for name, tensor in batch.items()}
        kept = [tensor.clone() for tensor in (self.optimizer.learning_rate, self.families, self.losses)]
        self.optimizer.learning_rate.zero_()  # warming up must not move the weights
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._clear()
                self._step(inputs, shape)
        torch.cuda.current_stream().wait_stream(side)
        self._clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=side):
            self._step(inputs, shape)
        for tensor, value in zip((self.optimizer.learning_rate, self.families, self.losses), kept, strict=True):
            tensor.copy_(value)
        return graph, inputs

    def _clear(self) -> None:
        for parameter in self.objective.parameters():
            parameter.grad = None

    def _step(self, batch: dict[str, Tensor], shape: Shape) -> None:
        frames = self.objective.draw(batch, shape, vary=True)
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda", cache_enabled=False):
            result = self.objective(batch, shape, frames)
            loss = result.answer + self.align * (result.word + result.rank)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.objective.parameters(), 1.0)
        self.optimizer.step()
        family = batch["family"].flatten()
        rows = torch.where(family < 0, len(FAMILIES), family)
        hits, costs = result.right[:, 1:].flatten().float(), result.question_loss[:, 1:].flatten()
        self.families.index_add_(0, rows, torch.stack([torch.ones_like(hits), hits, costs], dim=1))
        parts = [torch.ones_like(result.answer), result.answer, result.word, result.rank]
        self.losses += torch.stack([part.detach().float() for part in parts])


class Schedule:
    """Learning rate, alignment weight, difficulty and frame mix by the part of the stretch that has passed."""

    def __init__(self, recipe: Recipe, resumed: bool) -> None:
        self.recipe = recipe
        self.resumed = resumed

    def rate(self, progress: float) -> float:
        """Linear warm-up, then linear decay to a hundredth of the peak."""
        warm = self.recipe.warm_up_part
        shape = progress / warm if progress < warm else (1 - progress) / (1 - warm)
        return self.recipe.peak_rate * min(max(shape, 0.01), 1.0)

    def align(self, progress: float) -> float:
        """Falls linearly over the first quarter of a first stretch."""
        if self.resumed:
            return self.recipe.align_end
        fallen = min(progress / EASY_PART, 1.0)
        return self.recipe.align_start + (self.recipe.align_end - self.recipe.align_start) * fallen

    def difficulty(self, progress: float) -> float:
        """Rises linearly over the first quarter of a first stretch."""
        return 1.0 if self.resumed else min(progress / EASY_PART, 1.0)

    def mix(self, progress: float) -> dict[int, float]:
        """Share of each number of frames."""
        reached = 1.0 if self.resumed else progress
        return next(mix for limit, mix in FRAME_MIXES if reached < limit)


class Stretch:
    """One run: resumes or starts, trains until the time is up, saves on the way, evaluates what it saved."""

    def __init__(self, recipe: Recipe, out: Path, resume: Path | None, device: torch.device) -> None:
        self.started = time.perf_counter()
        self.recipe, self.out, self.device = recipe, out, device
        self.model, self.tokenizer = build(recipe.seed) if resume is None else load(resume)
        self.history: dict[str, Any] = {"stretches": []}
        if resume is not None:
            self.history = json.loads((resume / "training.json").read_text())
        self.first_step = sum(stretch["steps"] for stretch in self.history["stretches"])
        self.schedule = Schedule(recipe, resume is not None)
        self.packer = Packer(self.tokenizer)
        self.weights = dict.fromkeys(FAMILIES, 1.0)
        self.curve: list[dict[str, Any]] = []
        self.steps = 0

    def run(self) -> list[dict[str, Any]]:
        """Trains, saves and evaluates.

        Returns:
            Results of `evaluate`, one per number of frames for which there was time.
        """
        producer = Producer(self.packer, self.recipe, self.first_step)
        producer.fill(self.schedule.mix(0.0), self.schedule.difficulty(0.0), self.weights)  # forks before CUDA starts
        try:
            objective = self._train(producer)
        finally:
            producer.close()
        self._save(objective, [])
        rows: list[dict[str, Any]] = []
        saved, packer = open_objective(self.out, self.device)
        for frames in (16, 32, 100):
            if rows and self._seconds() > self.recipe.minutes * 60 - 12 and self.recipe.steps is None:
                break
            rows.append(evaluate(saved, packer, frames, self.recipe.evaluation_questions))
        print(table(rows), flush=True)
        self._save(objective, rows)
        return rows

    def _train(self, producer: Producer) -> Objective:
        prefix = self.tokenizer.convert_tokens_to_ids(["<|im_start|>", "user"])
        objective = Objective(self.model, self.packer.content_ids, prefix).train().to(self.device)
        if "alignment" in self.history:
            objective.set_alignment(self.history["alignment"])
        stepper = Stepper(objective, self.device)
        self._save(objective, [])  # a folder that cannot be written shows itself before the training
        logged = saved = begun = self._seconds()
        end = self.recipe.minutes * 60 - self.recipe.evaluation_seconds
        running: deque[torch.cuda.Event] = deque()
        while True:
            now = self._seconds()
            progress = (now - begun) / max(end - begun, 1.0)
            if self.recipe.steps is not None:
                progress = self.steps / self.recipe.steps
            if progress >= 1:
                break
            producer.fill(self.schedule.mix(progress), self.schedule.difficulty(progress), self.weights)
            stepper.optimizer.learning_rate.fill_(self.schedule.rate(progress))
            stepper.align.fill_(self.schedule.align(progress))
            batch = producer.next()
            clips, questions, frames = batch["relevant"].shape
            stepper.run(batch, Shape(clips, frames, batch["ids"].shape[1], questions))
            self.steps += 1
            if self.device.type == "cuda":
                running.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
                running[-1].record()
                if len(running) > IN_FLIGHT:
                    running.popleft().synchronize()
            if now - logged > LOG_SECONDS:
                self._log(stepper, progress, now - logged)
                logged = now
            if now - saved > SAVE_SECONDS:
                self._save(objective, [])
                saved = now
        if self._seconds() > logged:
            self._log(stepper, 1.0, self._seconds() - logged)
        return objective

    def _seconds(self) -> float:
        return time.perf_counter() - self.started

    def _log(self, stepper: Stepper, progress: float, seconds: float) -> None:
        """Prints and keeps the means since the last call, and asks more of what goes wrong."""
        asked, right, _ = stepper.families[:-1].T.tolist()
        steps, *losses = stepper.losses.tolist()
        stepper.families.zero_()
        stepper.losses.zero_()
        means = [loss / max(steps, 1) for loss in losses]
        shares = {name: r / a for name, a, r in zip(FAMILIES, asked, right, strict=True) if a > 0}
        self.weights |= {name: 0.1 + 1 - share for name, share in shares.items()}
        point = {
            "seconds": round(self._seconds(), 1),
            "step": self.first_step + self.steps,
            "steps_per_second": round(steps / max(seconds, 1e-9), 2),
            "rate": self.schedule.rate(progress),
            "losses": dict(zip(("answer", "word", "rank"), (round(mean, 4) for mean in means), strict=True)),
            "accuracy": {name: round(share, 4) for name, share in shares.items()},
        }
        self.curve.append(point)
        shown = " ".join(f"{name} {100 * share:.0f}" for name, share in shares.items())
        print(
            f"{point['seconds']:>5.0f} s step {point['step']} {point['steps_per_second']:.1f}/s "
            f"rate {point['rate']:.1e} answer {means[0]:.3f} word {means[1]:.3f} rank {means[2]:.3f} | {shown}",
            flush=True,
        )

    def _save(self, objective: Objective, evaluation: list[dict[str, Any]]) -> None:
        on_gpu = self.device.type == "cuda"
        stretch = {
            "recipe": asdict(self.recipe),
            "steps": self.steps,
            "minutes": round(self._seconds() / 60, 2),
            "device": torch.cuda.get_device_name(self.device) if on_gpu else "cpu",
            "peak_memory_gib": round(torch.cuda.max_memory_allocated(self.device) / 2**30, 1) if on_gpu else None,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "curve": self.curve,
            "evaluation": evaluation,
        }
        record = {
            "alignment": objective.alignment(),
            "stretches": [*self.history["stretches"], stretch],
        }
        save(objective.model, self.tokenizer, self.out, json.dumps(record, indent=1) + "\n")


def main() -> None:
    """Command line."""
    default = Recipe(minutes=8.3)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--resume", type=Path, help="folder of an earlier stretch")
    parser.add_argument("--minutes", type=float, default=default.minutes, help="whole run, evaluation included")
    parser.add_argument("--steps", type=int, help="stop after this many steps instead")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peak-rate", type=float, default=default.peak_rate)
    parser.add_argument("--frames-per-step", type=int, default=default.frames_per_step)
    parser.add_argument("--workers", type=int, default=default.workers)
    parser.add_argument("--questions", type=int, default=default.evaluation_questions, help="held-out questions")
    options = parser.parse_args()
    recipe = Recipe(
        minutes=options.minutes,
        seed=options.seed,
        steps=options.steps,
        frames_per_step=options.frames_per_step,
        peak_rate=options.peak_rate,
        workers=options.workers,
        evaluation_questions=options.questions,
    )
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(options.seed)
    Stretch(recipe, options.out, options.resume, torch.device(options.device)).run()


if __name__ == "__main__":
    main()
