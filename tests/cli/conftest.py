"""Results made by hand, of any size, and a home of its own for each test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from wq_cli.results import (
    AskResult,
    BenchResult,
    BenchRow,
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


@pytest.fixture(autouse=True)
def config_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("WQ_CONFIG_HOME", str(folder))
    for name in ("NO_COLOR", "FORCE_COLOR", "WQ_NO_PROGRESS", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return folder


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
    is_scene=True,
)
MODEL = ModelResult("demo", "llava_onevision", True, "cpu", "float32", "torch", "no GPU", LAYERS, 2, 64)
POLICY = PolicyResult("windowquant", {"window": 32, "alpha": 2.0, "score_norm": "minmax"})


@pytest.fixture
def make_ask() -> Callable[..., AskResult]:
    def make(windows: int = 17, duration: float = 8.0, **changes: object) -> AskResult:
        result = AskResult(
            command="ask",
            video=replace(VIDEO, duration_seconds=duration),
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
        return replace(result, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_inspect() -> Callable[..., InspectResult]:
    def make(
        windows: int = 17, prompts: int = 2, duration: float = 8.0, layers: int = LAYERS, **changes: object
    ) -> InspectResult:
        texts = ("a dog", "a red circle moves to the left", "the sky", "a goal is scored", "一只狗")
        result = InspectResult(
            command="inspect",
            video=replace(VIDEO, duration_seconds=duration),
            model=MODEL,
            policy=POLICY,
            prompts=texts[:prompts],
            windows=tuple(
                make_windows(windows, duration, peak=(i + 0.5) / prompts, layers=layers) for i in range(prompts)
            ),
            layers=make_layers(layers),
            visual_tokens=32 * windows,
            window_size=32,
        )
        return replace(result, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_bench() -> Callable[..., BenchResult]:
    def make(**changes: object) -> BenchResult:
        def row(policy: str, bits: float, kv: int, ms: float, kl: float | None, agree: float | None) -> BenchRow:
            return BenchRow(policy, bits, kv, 1_000_000, 5_000_000, 0.4, 3.2, 120.0, ms, 1000 / ms, kl, agree, 900.0)

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
                row("fp16", 16.0, 1_000_000, 10.0, None, None),
                row("windowquant", 3.4, 220_000, 8.0, 0.0021, 0.97),
                row("rtn4", 5.0, 320_000, 9.0, 0.0011, 1.0),
                row("rtn2", 3.0, 190_000, 12.5, 0.053, 0.84),
            ),
            versions={"torch": "2.14.1", "transformers": "5.24.0"},
        )
        return replace(result, **changes)  # type: ignore[arg-type]

    return make
