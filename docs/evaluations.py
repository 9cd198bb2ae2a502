"""Commands and pages of `wq eval` and `wq bench ablation`, for docs/make_benchmarks.py."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "benchmarks"
SCENES = "scenes"
# What stands beside a figure, in words.
ABLATIONS = {
    "grouping": "What shares a scale and a minimum: the tokens of a window in each channel (WindowQuant), KIVI's axes, "
    "channels of a token, or all that is in a window.",
    "scorer": "How a window is compared with the question.",
    "parts": "WindowQuant, and WindowQuant without one of its parts.",
    "window": "Visual tokens per window; the first window and the tail stay at full precision, so that bits differ.",
    "alpha": "The shape of the thresholds: the larger, the more windows between them.",
    "prompts": "The relevance of the windows of one scene to six questions, and the bits of each layer for the first.",
    "first-tokens": "Where the attention to the video goes: why the first window is kept.",
    "layers": "How little the attention of each layer changes the stream, over all questions: s_i of eq 9.",
}
_HEAD = """\
# The paper's experiments on the demo model

Made by `python docs/make_benchmarks.py` from the JSON files in `ablations/`, the output of the commands shown; \
`python docs/make_benchmarks.py ablations/scorer` runs a command again first. WindowQuant (arXiv 2605.02262) measured \
7B models on EgoSchema and NExT-QA, so that its figures, where they are given, stand beside ours without being \
comparable in size. Every question is read through the packed cache; KL in nats to full precision over its answers, \
with its standard error clustered by clip. The demo model answers its held-out questions right at nearly any width, \
so that the KL tells the rows apart, and so few questions tell only what differs by several standard errors: grouping \
does, most other rows do not. Times on shared CPU cores do not measure the methods.
"""


def command_of(name: str) -> str:
    """The command that makes a JSON file of this folder, and its plot."""
    if name == SCENES:
        return (
            "wq eval scenes --questions 400 --frames 100 --bits 2.55,2.8,3.3,4,4.75,5.5 "
            f"--plot docs/benchmarks/{name}.png --output docs/benchmarks/{name}.json"
        )
    what = name.removeprefix("ablations/")
    asked = {"prompts": "", "first-tokens": " --questions 48", "layers": " --questions 48"}
    files = f"--plot docs/benchmarks/{name}.png --output docs/benchmarks/{name}.json"
    return f"wq bench ablation {what}{asked.get(what, ' --questions 24')} {files}"


def measure(name: str) -> None:
    """Run a command again."""
    if name != SCENES and name.removeprefix("ablations/") not in ABLATIONS:
        raise SystemExit(f"known: {', '.join([SCENES, *(f'ablations/{what}' for what in ABLATIONS)])}")
    words = [sys.executable, "-m", "wq_cli", *shlex.split(command_of(name))[1:]]
    subprocess.run(words, cwd=FOLDER.parents[1], check=True)


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def made_with(result: dict[str, Any]) -> str:
    model = result["model"]
    parts = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{model['name']} on {model['device']}, {model['dtype']}, {model['backend']}; {parts}; {result['date']}."


def rows_of(result: dict[str, Any], paper: dict[str, str] | None = None) -> str:
    """The rows of an evaluation."""
    heads = ["", "accuracy", "KL to fp16", "same token", "bits", "KV, MiB", "metadata, KiB", "search, ms", "tokens/s"]
    rows = []
    for row in result["rows"]:
        speed = row["tokens_per_second"]
        cells = [
            row["label"],
            f"{row['accuracy']:.1%} ± {row['standard_error']:.1%}",
            f"{row['kl_to_full']:.2g} ± {row['kl_standard_error']:.1g}",
            f"{row['greedy_agreement']:.2%}",
            f"{row['effective_bits']:.2f}",
            f"{row['kv_bytes'] / 2**20:.2f}",
            f"{row['metadata_bytes'] / 2**10:.0f}",
            f"{row['search_ms']:.1f}",
            "" if speed is None else f"{speed:.0f}",
        ]
        rows.append(cells + ([paper.get(row["label"], "")] if paper else []))
    return table(heads + (["paper"] if paper else []), rows)


def asked(result: dict[str, Any]) -> str:
    return f"{result['questions']} questions on {result['clips']} clips of {result['frames']} frames"


def _beside_windowquant(result: dict[str, Any]) -> str:
    """What share of WindowQuant's KL is left with ours at the same budgets."""
    kl = {(row["policy"], row["bits_asked"]): row["kl_to_full"] for row in result["rows"]}
    shares = [
        f"1/{kl['windowquant', bits] / value:.0f} at {bits:g} bits"
        for (policy, bits), value in kl.items()
        if policy == "focus" and ("windowquant", bits) in kl
    ]
    return f"The KL of `focus` is {', '.join(shares)} of WindowQuant's at the same budget, within those errors."


def scenes(result: dict[str, Any]) -> str:
    """The section of the demo model's questions."""
    return f"""\
## The demo model's held-out questions

```
{command_of(SCENES)}
```

{made_with(result)} {asked(result)}. Accuracy: the right option is the likeliest, question asked through the packed \
cache; standard errors clustered by clip. KL in nats and share of equal most likely tokens over the full-precision \
answers. `@` gives the budget of a policy that has something to choose; budgets below a policy's lowest widths have no \
row. On this model uniform 2 bits lose next to nothing: its keys are too kind to tell the methods apart by accuracy, \
where no row is more than a point from full precision. KL does, where it differs by more than its standard errors: \
five of the questions make up half of a row's KL or more. {_beside_windowquant(result)} Times on shared CPU cores do \
not measure the methods. The paper's experiments: [ablations.md](ablations.md).

![KL and accuracy against effective bits]({SCENES}.png)

{rows_of(result)}
"""


def ablation(name: str, result: dict[str, Any]) -> str:
    """One experiment: its command, conditions, table and plot."""
    evaluation = result.get("evaluation")
    source = result.get("source", "Fig 3")
    if evaluation:
        conditions = f"{made_with(evaluation)} {asked(evaluation)}."
        figures = "\n\n" + rows_of(evaluation, result["paper"])
    elif "curves" in result:
        conditions = f"{made_with(result)} {result['questions']} questions, {result['frames']} frames."
        places = range(len(next(iter(result["curves"].values()))))
        rows = [[label, *(f"{values[at]:.3f}" for at in places)] for label, values in result["curves"].items()]
        figures = "\n\n" + table([result["x_label"], *map(str, places)], rows)
    else:
        conditions = f"{result['model']['name']}, {result['visual_tokens']} visual tokens of {result['video']['path']}."
        figures = ""
    return f"""\
## {name}: {source}

```
{command_of(f"ablations/{name}")}
```

{ABLATIONS[name]} {conditions}

![{name}](ablations/{name}.png){figures}
"""


def write_ablations() -> None:
    """docs/benchmarks/ablations.md from what is there."""
    parts = [_HEAD]
    for name in ABLATIONS:
        path = FOLDER / "ablations" / f"{name}.json"
        if path.exists():
            parts.append(ablation(name, json.loads(path.read_text(encoding="utf-8"))))
    (FOLDER / "ablations.md").write_text("\n".join(parts), encoding="utf-8")
