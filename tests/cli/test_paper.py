"""`wq bench paper`: the paper's figures stand beside ours, both ways of attention agree, what fails costs a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from wq_cli import profile
from wq_cli.app import main
from wq_cli.bench import paper, random_weights
from wq_cli.bench.capacity import Capacity
from wq_cli.bench_results import CapacityRow
from wq_cli.config import Runtime, Settings

# Of arXiv 2605.02262, in the order of our rows.
PUBLISHED = {"tokens/s": [444, 1250, 500], "ms": [0.82, 1.25, 48], "MB": [61.4]}


def test_tiny_run_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "paper", "--tiny", "--device", "cpu", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["command"] == "bench paper" and shown["memory_from"] == "counted"
    by_unit: dict[str, list[float]] = {}
    for row in shown["rows"]:
        assert row["ours"] > 0 and row["error"] is None
        by_unit.setdefault(row["unit"], []).append(row["paper"])
    assert by_unit == PUBLISHED
    full, packed = ([row for row in shown["capacities"] if row["policy"] == name] for name in ("fp16", "windowquant"))
    for small, large in zip(full, packed, strict=True):
        assert small["batch"] < large["batch"] and small["frames"] < large["frames"]
    assert full[0]["frames"] < full[1]["frames"]


def test_no_card_is_begun_after_its_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "paper.json"
    assert main(["bench", "paper", "--tiny", "--device", "cpu", "--seconds", "0.001", "--output", str(file)]) == 0
    table = capsys.readouterr().out
    assert table.count("not measured") == 8 and "failed" not in table
    shown = json.loads(file.read_text(encoding="utf-8"))
    assert all(row["ours"] > 0 for row in shown["rows"])
    assert {(row["batch"], row["frames"]) for row in shown["capacities"]} == {(None, None)}
    assert {row["error"] for row in shown["capacities"]} == {"not begun: 0.001 s were over"}


@pytest.fixture(scope="module")
def lab() -> paper.Lab:
    settings = Settings(runtime=Runtime(device="cpu"))
    model = random_weights.build(random_weights.tiny(profile.load(paper.PROFILE)), settings)
    return paper.Lab(model, settings, paper.TINY)


def test_both_ways_of_attention_are_attention_over_the_cache(lab: paper.Lab) -> None:
    cache = lab._prefilled([lab._prompt(8)] * 2).cache
    for layer in cache.layers:
        assert layer.segments
        query = torch.randn(2, 7, 1, 64)
        keys, values = (x.double() for x in layer.dequantized(torch.float32))
        expected = scaled_dot_product_attention(query.double(), keys, values, enable_gqa=True)
        for way in (paper.fused, paper.dequantized_first):
            torch.testing.assert_close(way(query, layer).double(), expected, atol=1e-5, rtol=1e-4)


def test_an_experiment_that_fails_is_a_row_with_the_reason(lab: paper.Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")

    monkeypatch.setattr(paper, "measure", out_of_memory)
    rows = [row for _, experiment in lab.experiments() for row in experiment()]
    assert [row.ours is None for row in rows] == [True] * 3 + [False] * 4
    assert {row.error for row in rows[:3]} == {"CUDA out of memory. Tried to allocate"}


def test_a_card_that_fails_keeps_what_was_found(lab: paper.Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def within(capacity: Capacity, limit_bytes: int) -> int:
        if len(capacity._prompts(2)) == 1:
            raise RuntimeError("CUDA error: launch failed")
        return limit_bytes // 10**9

    monkeypatch.setattr(Capacity, "within", within)
    assert lab.capacity(24, "fp16") == CapacityRow(24, "fp16", 24, None, "CUDA error: launch failed")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["--device", "cpu"], 1, "the paper's experiments take an NVIDIA GPU"),
        (["--tiny", "--memory-gb", "24,0"], 2, "`--memory-gb 0` is not above 0"),
        (["--tiny", "--memory-gb", "much"], 2, "`much` is not a number"),
        (["--tiny", "--memory-gb", "1e300"], 2, "`--memory-gb 1e+300` is above 1e+06"),
    ],
)
def test_bad_input_is_one_line(line: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "paper", *line]) == code
    shown = capsys.readouterr()
    assert said in " ".join(shown.err.split()) and shown.out == ""
