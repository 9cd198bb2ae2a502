"""`wq bench kernels` where there is no GPU, and what it shows of rows that were measured elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wq_cli.app import main
from wq_kernels import bench

MACHINE = {"gpu": "a card", "torch": "2", "triton": "3", "date": "2026-01-01", "copy_gb_per_second": 4000.0}
ROWS = [
    bench.Row("flash", "bf16", 8, 19600, 80.0, 160_563_200, 0.5),
    bench.Row("cuDNN", "bf16", 8, 19600, error="RuntimeError: No available kernel"),
    bench.Row("INT2", "bf16", 8, 19600, 40.0, 30_000_000, 0.19, 2.0),
    bench.Row("mix", "fp16", 8, 19600, error="WRONG: relative error 0.5000, no time taken"),
]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a card that makes `ROWS`."""

    def run(*, on_row: Any, **how: Any) -> tuple[dict[str, Any], list[bench.Row]]:
        for row in ROWS:
            on_row(row)
        return dict(MACHINE), ROWS

    monkeypatch.setattr(bench, "obstacle", lambda: None)
    monkeypatch.setattr(bench, "run", run)


def test_without_a_gpu_it_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["bench", "kernels"]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.strip() == "error: the kernels cannot be measured here: there is no NVIDIA GPU"
    assert main(["bench", "kernels", "--seconds", "0"]) == 2


def test_table_has_the_figures_and_errors_have_a_line(measured: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels"]) == 1  # one of them is wrong
    said = capsys.readouterr()
    lines = said.out.splitlines()
    (flash,) = [line.split() for line in lines if "flash" in line]
    (ours,) = [line.split() for line in lines if "INT2" in line]
    assert flash == ["8", "19,600", "bf16", "flash", "80.0", "us", "160.6", "MB", "50%"]
    assert ours[4:] == ["40.0", "us", "30.0", "MB", "19%", "2.00×"]
    notes = " ".join(said.err.split())
    assert f"{bench.count() - 4} of {bench.count()} rows are left out" in notes
    assert "cuDNN, bf16, 8 x 19600: RuntimeError: No available kernel" in notes
    assert ("FlashInfer is left out" in notes) == (bench.FLASHINFER not in bench.peers())


def test_json_is_one_document_with_machine_and_rows(
    measured: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "kernels.json"
    assert main(["bench", "kernels", "--json", "--output", str(path)]) == 1
    said = capsys.readouterr().out
    assert path.read_text() == said
    shown = json.loads(said)
    assert shown["command"] == "bench kernels" and shown["machine"] == MACHINE
    assert [row["median_us"] for row in shown["rows"]] == [80.0, None, 40.0, None]
