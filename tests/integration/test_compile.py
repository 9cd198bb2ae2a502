"""`--compile` from the command line to the result: the same answer, what compiling took, why it did not work."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small_videos import make
from tiny_models import llava_onevision
from typer.testing import CliRunner

from wq_cli import compiled
from wq_cli.app import app

NOT_COMPILED = "the decoder's layers are not compiled: "
SLOW_SECONDS = 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("given")
    llava_onevision(made / "model")
    make(made / "a.mp4", n=12)
    return made


def no_compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> None:
    raise FileNotFoundError("no C++ compiler")


def slow_compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    time.sleep(SLOW_SECONDS)
    return graph.forward


def run(folder: Path, backend: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """The document of a command; graphs run as they are traced, as kernels of their own take long to make."""
    torch.compiler.reset()
    make_compiled = functools.partial(torch.compile, backend=backend, fullgraph=True, dynamic=False)
    monkeypatch.setattr(compiled, "_compiled", functools.cache(make_compiled))
    place = ["--model", str(folder / "model"), "--device", "cpu", "--frames", "12", "--json"]
    result = CliRunner().invoke(app, [*arguments, *place])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ["ask", str(folder / "a.mp4"), "what happens?", "--max-new-tokens", "6"]
    plain = run(folder, "aot_eager", monkeypatch, *question)
    fused = run(folder, "aot_eager", monkeypatch, *question, "--compile")
    failed = run(folder, no_compiler, monkeypatch, *question, "--compile")
    assert plain["answer"] == fused["answer"] == failed["answer"]
    assert plain["timing"]["compile_ms"] is None and failed["timing"]["compile_ms"] is None
    assert fused["timing"]["compile_ms"] > fused["timing"]["decode_ms_per_token"]
    assert not any(NOT_COMPILED in notice for notice in fused["notices"])
    assert any(notice.startswith(NOT_COMPILED) and "no C++ compiler" in notice for notice in failed["notices"])
    two = run(folder, "aot_eager", monkeypatch, *question[:-1], "2", "--compile")["timing"]
    assert two["compile_ms"] > 0 and two["decode_ms_per_token"] is two["tokens_per_second"] is None


def test_bench(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = ["--video", str(folder / "a.mp4"), "--policies", "fp16", "--decode-tokens", "3", "--fidelity-tokens", "0"]
    (row,) = run(folder, "aot_eager", monkeypatch, "bench", *clip, "--compile")["rows"]
    assert row["compile_ms"] > row["decode_ms_per_token"] and row["warmup_ms"] > row["compile_ms"]
    clip[3] = "rtn2"  # the reference is not in the table
    (row,) = run(folder, slow_compiler, monkeypatch, "bench", *clip, "--compile")["rows"]
    assert row["compile_ms"] > 1e3 * SLOW_SECONDS
    clip[3] = "fp16"
    failed = run(folder, no_compiler, monkeypatch, "bench", *clip, "--compile")
    assert failed["rows"][0]["compile_ms"] is None
    assert any(notice.startswith(f"fp16: {NOT_COMPILED}") for notice in failed["notices"])
