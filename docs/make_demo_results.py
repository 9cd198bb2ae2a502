"""Write the results of docs/demo-model.md from the shipped training record: `python docs/make_demo_results.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wq_cli.scenes import WEIGHTS
from wq_cli.scenes.questions import FAMILIES

TARGET = Path(__file__).parent / "demo-model.md"
BEGIN, END = "<!-- results: made by docs/make_demo_results.py -->\n", "<!-- end of results -->\n"


def results(record: dict[str, Any]) -> str:
    """Tables of a training record: accuracy by family, the stretches, and the curve."""
    rows = record["stretches"][-1]["evaluation"]
    lines = [
        "| frames | questions | all | AUC of eq 8 | " + " | ".join(FAMILIES) + " |",
        "|---" * (4 + len(FAMILIES)) + "|",
    ]
    for row in rows:
        shares = " | ".join(f"{100 * row['families'][name]:.1f}" for name in FAMILIES)
        lines.append(
            f"| {row['frames']} | {row['questions']:,} | {100 * row['accuracy']:.1f} | {row['auc']:.3f} | {shares} |"
        )
    lines += ["", "| stretch | steps | minutes | device | peak memory, GiB | torch | transformers |", "|---" * 7 + "|"]
    for number, stretch in enumerate(record["stretches"], start=1):
        versions = stretch["versions"]
        lines.append(
            f"| {number} | {stretch['steps']:,} | {stretch['minutes']} | {stretch['device']} "
            f"| {stretch['peak_memory_gib']} | {versions['torch']} | {versions['transformers']} |"
        )
    return "\n".join([*lines, "", *curve(record)]) + "\n"


def curve(record: dict[str, Any]) -> list[str]:
    """Table of the accuracy on training batches over time, a line for about every fourth record."""
    lines = [
        "Accuracy in percent on the batches of the last 20 s or so, while training:",
        "",
        "| stretch | seconds | step | answer loss | " + " | ".join(FAMILIES) + " |",
        "|---" * (4 + len(FAMILIES)) + "|",
    ]
    for number, stretch in enumerate(record["stretches"], start=1):
        points = stretch["curve"]
        for point in [*points[:-1:4], points[-1]]:
            shares = " | ".join(f"{100 * point['accuracy'][name]:.0f}" for name in FAMILIES)
            losses = f"{point['losses']['answer']:.3f}"
            lines.append(f"| {number} | {point['seconds']:.0f} | {point['step']:,} | {losses} | {shares} |")
    return lines


def page() -> str:
    """The model card with the results of the shipped weights."""
    text = TARGET.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    record = json.loads((WEIGHTS / "training.json").read_text(encoding="utf-8"))
    return before + BEGIN + results(record) + END + after


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
