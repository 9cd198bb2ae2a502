"""Sections of docs/benchmarks on speed, from results as the commands write them."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import results_by_hand as by_hand

from wq_cli.bench_results import CapacityRow, PaperResult, PaperRow, ScalingResult, ScalingRow
from wq_cli.report.json import document

DOCS = Path(__file__).parents[2] / "docs"
CONDITIONS = {"settings": {}, "versions": {"wq": "1", "card": "a card"}, "date": "2026-01-02"}


@pytest.fixture
def speed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("speed")


def cells(section: str, word: str) -> list[list[str]]:
    """Rows of tables that hold a word, cell by cell."""
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [row for row in rows if word in row]


def test_peers_stand_beside_policies_without_the_figures_they_lack(speed: ModuleType) -> None:
    result = by_hand.bench_result()
    peer = replace(result.rows[0], policy="hf dynamic", search_ms=None, seal_ms=None, is_peer=True)
    made = json.loads(document(replace(result, rows=(*result.rows, peer))))
    section = speed.clip(made)
    (ours,), (theirs,) = cells(section, result.rows[0].policy), cells(section, "hf dynamic")
    assert ours[1:3] == theirs[1:3] and ours[3] != "" and theirs[3:5] == ["", ""]
    assert "wq bench --frames 100 --peers --output" in section
    assert " --peers" not in speed.clip(json.loads(document(result)))


def test_paper_section_has_both_figures_and_the_reason_where_one_is_missing(speed: ModuleType) -> None:
    rows = (
        PaperRow("decoding", "fp16", "tokens/s", 444.0, 1234.5, 16.0),
        PaperRow("decoding", "no reorder", "tokens/s", 500.0, error="out of memory"),
    )
    capacities = (CapacityRow(24, "fp16", 60, 1234),)
    made = PaperResult("bench paper", by_hand.MODEL, rows, capacities, "allocator", 5, **CONDITIONS)
    section = speed.paper(json.loads(document(made)))
    assert cells(section, "fp16") == [
        ["decoding", "fp16", "444", "1,234", "tokens/s", "16.00"],
        ["24 GB", "fp16", "60", "1,234"],
    ]
    assert cells(section, "no reorder")[0][2:5] == ["500", "out of memory", "tokens/s"]
    assert "card a card; 2026-01-02" in section


def test_scaling_section_has_a_row_a_step_and_policy(speed: ModuleType) -> None:
    row = replace(by_hand.bench_row("fp16", 16, 3 * 2**20, 4.25, None, None), peak_bytes=2**31)
    steps = tuple(ScalingRow(frames, 196 * frames, (row,)) for frames in (25, 100))
    made = ScalingResult("bench scaling", by_hand.MODEL, 2, 32, steps, **CONDITIONS)
    section = speed.scaling(json.loads(document(made)))
    assert cells(section, "fp16")[1] == ["100", "19,600", "fp16", "16.00", "3", "2.0", "4.25"]
    assert "--frames 25,100 --batch 2" in section
