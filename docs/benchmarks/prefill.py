"""Where time and memory go from frames to a sealed cache: a profile's architecture with random weights.

    python docs/benchmarks/prefill.py           # LLaVA-OneVision-7B and 100 frames on a GPU; writes prefill.json
    python docs/benchmarks/prefill.py --tiny    # that the script runs, anywhere; writes nothing unless --json is given

Times are medians on the device's own clock after a run that is not counted. Memory is the allocator's peak above what
was allocated before: the weights, and for the prefill the prompt too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wq_cli import device, engine
from wq_cli import profile as profiles
from wq_cli.bench import made_with, random_weights
from wq_cli.cache import WindowCache
from wq_cli.config import Quantization, Runtime, Settings
from wq_cli.models.base import Prompt, VideoModel
from wq_cli.models.frames import tower_features
from wq_cli.models.pooling import halve

HERE = Path(__file__).parent
HEIGHT, WIDTH = 432, 768  # 16:9 at the profile's longest side


@dataclass
class Row:
    """One part; memory is None where the device does not count it."""

    part: str
    ms: float
    peak_bytes: int | None = None

    def __str__(self) -> str:
        peak = "" if self.peak_bytes is None else f"{self.peak_bytes / 2**20:10.0f} MiB"
        return f"{self.part:<48} {self.ms:10.2f} ms {peak}"


def measure(part: str, model: VideoModel, call: Callable[[], object], repeats: int) -> Row:
    """Median time of a call and its peak above what was allocated before the first one."""
    times = []
    on_gpu = model.device.type == "cuda"
    before = torch.cuda.memory_allocated(model.device) if on_gpu else 0
    for _ in range(repeats + 1):
        device.wait(model.device)
        device.reset_peak(model.device)
        watch = device.Stopwatch(model.device)
        with watch():
            call()
        times.append(watch.ms)
        peak = torch.cuda.max_memory_allocated(model.device) - before if on_gpu else None
    row = Row(part, statistics.median(times[1:]), peak)
    print(row, flush=True)
    return row


def vision_side(model: VideoModel, frames: np.ndarray, repeats: int) -> list[Row]:
    """The parts of `encode`, each over all frames in the batches that `encode` takes, then the whole."""
    inner, vision = model.model.model, model.model.config.vision_config
    side = vision.image_size // vision.patch_size
    count = model.frames_at_once()
    batches = [frames[start : start + count] for start in range(0, len(frames), count)]
    print(f"{len(frames)} frames of {WIDTH}x{HEIGHT}, {count} at a time", flush=True)
    pixels = [model.video_pixels(batch) for batch in batches]
    features = [tower_features(model.model, batch) for batch in pixels]
    projected = [inner.multi_modal_projector(batch) for batch in features]

    def over(inputs: list[Any], part: Callable[[Any], object]) -> Callable[[], object]:
        def run() -> None:
            for batch in inputs:
                part(batch)

        return run

    parts: list[tuple[str, Callable[[], object]]] = [
        ("pixels", over(batches, model.video_pixels)),
        ("vision tower", over(pixels, lambda x: tower_features(model.model, x))),
        ("vision tower, transformers' hidden states", over(pixels, lambda x: all_states(inner.vision_tower, x))),
        ("projector", over(features, inner.multi_modal_projector)),
        ("pooling", over(projected, lambda x: halve(x, side, side))),
        ("pooling, transformers", over(projected, inner.apply_pooling)),
    ]
    rows = [measure(name, model, call, repeats) for name, call in parts]
    del pixels, features, projected, parts
    rows.append(
        measure("encode, all of it", model, lambda: model.encode(frames, np.arange(float(len(frames)))), repeats)
    )
    return rows


def all_states(tower: Any, pixels: torch.Tensor) -> torch.Tensor:
    """The layer that LLaVA-OneVision takes, as transformers gets it."""
    states: torch.Tensor = tower(pixels, output_hidden_states=True).hidden_states[-1]
    return states


def language_side(
    model: VideoModel, prompt: Prompt, settings: Quantization, s_i: list[float] | None, repeats: int
) -> tuple[list[Row], dict[str, Any]]:
    """Search, prefill and sealing, the rows named by policy and source of the sensitivities."""
    name = settings.policy
    if name == "windowquant":
        name += ", s_i measured" if s_i is None else ", s_i known"
    times: list[tuple[float, float, float]] = []
    caches: list[WindowCache] = []

    def run() -> None:
        caches.clear()  # one at a time
        request = engine.prepare(model, [prompt], settings, room=32, sensitivity=s_i)
        state = engine.prefill(model, request)
        times.append((request.found.ms, state.first_token_ms, state.seal_ms))
        caches.append(state.cache)

    rows = [measure(f"{name}: search and prefill", model, run, repeats)]
    parts = ("search and plans", "prefill with sealing", "sealing")
    for part, values in zip(parts, zip(*times[1:], strict=True), strict=True):
        rows.append(Row(f"{name}: {part}", statistics.median(values)))
        print(rows[-1], flush=True)
    (cache,) = caches
    facts = {
        "seal_share": rows[3].ms / rows[2].ms,
        "effective_bits": cache.visual_bits,
        "kv_bytes": cache.nbytes,
        "layer_bytes_full": cache.full_nbytes // len(cache.layers),
    }
    print(
        f"{name}: sealing is {facts['seal_share']:.1%} of the prefill, {facts['effective_bits']:.2f} bits", flush=True
    )
    return rows, {name: facts}


def build(options: argparse.Namespace) -> VideoModel:
    profile = profiles.load(options.profile)
    if options.tiny:
        profile = random_weights.tiny(profile)
    return random_weights.build(profile, Settings(runtime=Runtime(device="cpu" if options.tiny else "auto")))


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="llava-onevision-7b", help="a LLaVA-OneVision (default %(default)s)")
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a model of two small layers, on the CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default prefill.json here)")
    options = parser.parse_args()
    # What the figures depend on; where they go is the machine's own.
    said = [
        f"--{name} {value}" if value is not True else f"--{name}"
        for name, value in vars(options).items()
        if name != "json" and value != parser.get_default(name)
    ]
    if not options.tiny and not torch.cuda.is_available():
        print("error: there is no GPU here, `--tiny` runs without one", file=sys.stderr)
        return 1
    model = build(options)
    frames = np.random.default_rng(0).integers(0, 256, (options.frames, HEIGHT, WIDTH, 3), dtype=np.uint8)
    rows = vision_side(model, frames, options.repeats)
    visual = model.encode(frames, np.arange(float(options.frames)))
    prompt = random_weights.prompt(model, visual)
    facts: dict[str, Any] = {}
    known = [0.9] * model.text_config.num_hidden_layers
    for policy, s_i in (("windowquant", None), ("windowquant", known), ("fp16", None)):
        made, fact = language_side(model, prompt, Quantization(policy=policy), s_i, options.repeats)
        rows += made
        facts |= fact
    figures = {
        "command": " ".join(["python docs/benchmarks/prefill.py", *said]),
        "versions": made_with(model),
        "date": date.today().isoformat(),
        "frames": options.frames,
        "visual_tokens": len(visual.embeds),
        "weight_bytes": sum(x.nbytes for x in model.model.parameters()),
        "embeds_bytes": prompt.embeds.nbytes,
        "rows": [asdict(row) for row in rows],
        "caches": facts,
    }
    target = options.json or (None if options.tiny else HERE / "prefill.json")
    if target is not None:
        target.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
