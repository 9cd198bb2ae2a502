"""What the times of `wq bench` hold and what they leave out (D11)."""

from __future__ import annotations

import time
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from small_videos import make
from tiny_models import llava_onevision

from wq_cli import bench, decoding, engine
from wq_cli.config import Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener, Screen
from wq_cli.results import BenchRow

COMPILING_SECONDS = 1.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = llava_onevision(tmp_path_factory.mktemp("model"))
    return Settings(Sampling(frames=12), Quantization(window=8), runtime=Runtime(model=str(folder)))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("clip") / "a.mp4", n=12))


def rows(clip: str, settings: Settings) -> list[BenchRow]:
    with Listener(Screen(quiet=True)) as silent:
        made = bench.run(
            clip, "what happens?", settings, silent, policies=["fp16", "rtn4"], decode_tokens=3, fidelity_tokens=0
        )
    return list(made.rows)


@pytest.mark.parametrize(("module", "stage"), [(engine, "prefill"), (decoding, "decode")])
def test_d11_what_is_compiled_at_the_first_call_is_warm_up(
    module: ModuleType, stage: str, clip: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold kernel cache shows as a first call that takes longer; no figure but the warm-up may hold it."""
    warm = rows(clip, settings)
    run, calls = getattr(module, stage), []

    def cold_at_first(model: Any, *more: Any, **named: Any) -> Any:
        if not calls:
            time.sleep(COMPILING_SECONDS)
        calls.append(stage)
        return run(model, *more, **named)

    monkeypatch.setattr(module, stage, cold_at_first)
    cold = rows(clip, settings)
    compiling_ms = 1e3 * COMPILING_SECONDS
    assert cold[0].warmup_ms >= compiling_ms
    for row in (*warm, *cold):
        timed = row.first_token_ms + 3 * row.decode_ms_per_token
        assert max(timed, row.search_ms, row.first_token_ms_range[1], row.decode_ms_per_token_range[1]) < compiling_ms


def test_runs_are_counted_and_their_range_holds_the_median(clip: str, settings: Settings) -> None:
    for row in rows(clip, settings):
        assert row.runs == 5
        for low, middle, high in (
            (row.first_token_ms_range[0], row.first_token_ms, row.first_token_ms_range[1]),
            (row.decode_ms_per_token_range[0], row.decode_ms_per_token, row.decode_ms_per_token_range[1]),
        ):
            assert 0 < low < middle < high


def test_slow_models_are_timed_once(clip: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("wq_cli.bench.measure"), "_ENOUGH_SECONDS", 0.0)
    assert [row.runs for row in rows(clip, settings)] == [1, 1]
