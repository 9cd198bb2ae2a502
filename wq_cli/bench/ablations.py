"""The paper's experiments on settings (arXiv 2605.02262): changed settings side by side on the same questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wq_cli.bench import FULL
from wq_cli.bench.evaluate import evaluate, variants
from wq_cli.results import AblationResult

if TYPE_CHECKING:
    from wq_cli.config import Quantization, Settings
    from wq_cli.pipeline import Listener
    from wq_cli.suites import Questions


@dataclass(frozen=True)
class Ablation:
    """One experiment.

    Attributes:
        source: Table or figure of the paper.
        rows: Settings by label, made from the user's.
        paper: What the paper has for a row.
    """

    source: str
    rows: Callable[[Quantization], dict[str, Quantization]]
    paper: Mapping[str, str]


def _scorers(settings: Quantization) -> dict[str, Quantization]:
    return {name: replace(settings, scorer=name) for name in ("cosine", "pearson", "euclidean")}


def _parts(settings: Quantization) -> dict[str, Quantization]:
    return {
        "whole method": settings,
        "no fixed first window": replace(settings, fixed_first_window=False),
        "random widths": replace(settings, policy="random"),
        "no reordering": replace(settings, reorder=False),
    }


def _windows(settings: Quantization) -> dict[str, Quantization]:
    return {f"window {tokens}": replace(settings, window=tokens) for tokens in (8, 16, 32, 64, 128)}


def _alphas(settings: Quantization) -> dict[str, Quantization]:
    return {f"alpha {alpha:g}": replace(settings, alpha=alpha) for alpha in (0.5, 1.0, 2.0, 4.0, 8.0)}


def _groupings(settings: Quantization) -> dict[str, Quantization]:
    return {
        f"{axes}, {bits} bits": replace(settings, policy=f"rtn{bits}:axes={axes}")
        for bits in (2, 4)
        for axes in ("window", "kivi", "token", "tensor")
    }


ABLATIONS = {
    "grouping": Ablation(
        "Table 10",
        _groupings,
        {
            "window, 2 bits": "64.1%, 61.4 MB of metadata",
            "tensor, 2 bits": "58.6%, 0.2 MB of metadata",
        },
    ),
    "scorer": Ablation(
        "Table 11",
        _scorers,
        {"cosine": "64.1%, 48 ms", "pearson": "63.2%, 55 ms", "euclidean": "61.4%, 49 ms"},
    ),
    "parts": Ablation(
        "Tables 7 and 8",
        _parts,
        {
            FULL: "58.1%, 47.7 GB, 444 tokens/s",
            "whole method": "58.4%, 43.7 GB, 1,250 tokens/s",
            "no fixed first window": "57.2%, 43.6 GB, 1,276 tokens/s",
            "random widths": "55.2%, 43.7 GB, 1,250 tokens/s",
            "no reordering": "58.4%, 44.7 GB, 500 tokens/s",
        },
    ),
    "window": Ablation("Fig 13", _windows, {"window 32": "chosen"}),
    "alpha": Ablation("Fig 13", _alphas, {"alpha 2": "chosen"}),
}


def run(name: str, settings: Settings, listener: Listener, questions: Questions) -> AblationResult:
    """One experiment.

    Args:
        name: One of `ABLATIONS`.
        settings: All options; those that the experiment changes are replaced.
        listener: Told of stages, as in `evaluate`.
        questions: What is asked.

    Raises:
        WqError: Anything the user can fix.
    """
    ablation = ABLATIONS[name]
    full = variants(settings.quantization, ())
    found = evaluate(settings, listener, questions, full | ablation.rows(settings.quantization))
    return AblationResult("bench ablation", name, ablation.source, dict(ablation.paper), found)
