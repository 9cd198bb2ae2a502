"""Results of any size, made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from wq_cli.results import (
    AskResult,
    BenchResult,
    BenchRow,
    EvalResult,
    EvalRow,
    InspectResult,
    LayerResult,
    MemoryResult,
    ModelResult,
    PolicyResult,
    TimingResult,
    VideoResult,
    WindowResult,
)

LAYERS = 8
PROMPTS = ("a dog", "a red circle moves to the left", "the sky", "a goal is scored", "一只狗")


def make_windows(count: int, duration: float, peak: float = 0.6, layers: int = LAYERS) -> tuple[WindowResult, ...]:
    """A first window, scored windows with one peak in time, and a tail; widths follow the relevance."""
    windows = []
    for index in range(count):
        role = "first" if index == 0 else "tail" if index == count - 1 else "scored"
        relevance = math.exp(-((index / count - peak) ** 2) / 0.02)
        bits = [
            16 if role != "scored" else 16 if relevance > 0.9 else 4 if relevance > 0.1 * layer else 2
            for layer in range(layers)
        ]
        windows.append(
            WindowResult(
                index=index,
                role=role,
                tokens=32 if role != "tail" else 16,
                first_frame=index,
                last_frame=index + 1,
                start_seconds=duration * index / count,
                end_seconds=duration * (index + 1) / count,
                similarity=None if role == "tail" else 0.01 + 0.05 * relevance,
                relevance=relevance if role == "scored" else None,
                key_bits=tuple(bits),
                value_bits=tuple(bits),
            )
        )
    return tuple(windows)


def make_layers(count: int = LAYERS) -> tuple[LayerResult, ...]:
    return tuple(
        LayerResult(i, 0.84 + 0.02 * i if i < 7 else 0.98, 0.7, 0.95, {16: 2, 4: 5, 2: 9}) for i in range(count)
    )


VIDEO = VideoResult(
    path="clip.mp4",
    width=96,
    height=96,
    duration_seconds=8.0,
    frames=32,
    frames_requested=32,
    pts_seconds=tuple(0.125 + 0.25 * i for i in range(32)),
    rotation_degrees=0,
    has_audio=False,
    is_scene=True,
)
MODEL = ModelResult("demo", "llava_onevision", True, "cpu", "float32", "torch", "no GPU", LAYERS, 2, 64)
POLICY = PolicyResult("windowquant", {"window": 32, "alpha": 2.0, "score_norm": "minmax"})


def ask_result(windows: int = 17, duration: float = 8.0, path: str = "clip.mp4", **changes: Any) -> AskResult:
    result = AskResult(
        command="ask",
        video=replace(VIDEO, duration_seconds=duration, path=path),
        model=MODEL,
        policy=POLICY,
        prompt="what happens?",
        windows=make_windows(windows, duration),
        layers=make_layers(),
        visual_tokens=32 * (windows - 1) + 16,
        text_tokens=12,
        window_size=32,
        memory=MemoryResult(200_000, 1_048_576, 3.4, 30_000, 123_456_789),
        timing=TimingResult(900.0, 42.0, 310.0, 0.43, 512.0, 3.1, 11.0, 90.9),
        answer="a dog appears",
        answer_tokens=3,
        finish_reason="stop",
    )
    return replace(result, **changes)


def inspect_result(
    windows: int = 17,
    prompts: int = 2,
    duration: float = 8.0,
    layers: int = LAYERS,
    texts: tuple[str, ...] | None = None,
    path: str = "clip.mp4",
    **changes: Any,
) -> InspectResult:
    texts = texts or PROMPTS[:prompts]
    result = InspectResult(
        command="inspect",
        video=replace(VIDEO, duration_seconds=duration, path=path),
        model=MODEL,
        policy=POLICY,
        prompts=texts,
        windows=tuple(make_windows(windows, duration, (i + 0.5) / len(texts), layers) for i in range(len(texts))),
        layers=make_layers(layers),
        visual_tokens=32 * windows,
        window_size=32,
    )
    return replace(result, **changes)


def bench_row(
    policy: str, bits: float, kv_bytes: int, ms: float, kl: float | None, same: float | None, spread: float = 0.03
) -> BenchRow:
    """`spread`: how far the slowest and fastest run lie from the median, as a share of it."""
    ranges = [(middle * (1 - spread), middle * (1 + spread)) for middle in (120.0, ms)]
    return BenchRow(
        policy, bits, kv_bytes, 1_000_000, 5_000_000, 0.4, 3.2, 120.0, ms, 1000 / ms, kl, same, 900.0, 5, *ranges
    )


def bench_result(**changes: Any) -> BenchResult:
    result = BenchResult(
        command="bench",
        video=VIDEO,
        model=MODEL,
        prompt="what happens?",
        batch=1,
        visual_tokens=1600,
        decode_tokens=64,
        fidelity_tokens=32,
        rows=(
            bench_row("fp16", 16.0, 1_000_000, 10.0, None, None),
            bench_row("windowquant", 3.4, 220_000, 8.0, 0.0021, 0.97),
            bench_row("rtn4", 5.0, 320_000, 9.0, 0.0011, 1.0),
            bench_row("rtn2", 3.0, 190_000, 12.5, 0.053, 0.84),
        ),
        settings={"window": 32},
        versions={"torch": "2.14.1", "transformers": "5.24.0"},
        date="2026-11-29",
    )
    return replace(result, **changes)


def eval_row(**changes: Any) -> EvalRow:
    """A row whose figures do not matter but where they are given."""
    row = EvalRow(
        label="windowquant",
        policy="windowquant",
        bits_asked=None,
        accuracy=0.9,
        standard_error=0.02,
        families={"MC": 0.8, "OE": 1.0},
        kl_to_full=0.01,
        kl_standard_error=0.002,
        greedy_agreement=0.98,
        effective_bits=4.0,
        kv_bytes=1e6,
        kv_bytes_full=4e6,
        metadata_bytes=2e5,
        search_ms=1.0,
        tokens_per_second=50.0,
    )
    return replace(row, **changes)


def eval_result(*rows: EvalRow) -> EvalResult:
    bench = bench_result()
    return EvalResult(
        command="eval",
        suite="scenes",
        model=bench.model,
        settings={},
        seed=0,
        frames=32,
        clips=50,
        questions=200,
        answer="likelihood",
        answer_tokens=32,
        rows=rows,
        versions={"wq": "0.1.0"},
        date="2026-01-01",
    )
