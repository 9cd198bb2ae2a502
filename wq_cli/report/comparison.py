"""The tables of `wq bench` and `wq eval`: one row a policy, each against full precision."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.table import Table
from rich.text import Text

from wq_cli.console import printable
from wq_cli.report import format
from wq_cli.report.format import Glyphs
from wq_cli.results import BenchResult, BenchRow, EvalResult, EvalRow

REFERENCE = "fp16"
_WIDE = 120

# heading, cell, whether only wide terminals show it
_COLUMNS: list[tuple[str, Callable[[BenchRow], str], bool]] = [
    ("policy", lambda row: row.policy, False),
    ("bits", lambda row: f"{row.effective_bits:.2f}", False),
    ("KV", lambda row: format.size(row.kv_bytes), False),
    ("peak", lambda row: "" if row.peak_bytes is None else format.size(row.peak_bytes), True),
    ("search", lambda row: "" if row.search_ms is None else format.milliseconds(row.search_ms), True),
    ("seal", lambda row: "" if row.seal_ms is None else format.milliseconds(row.seal_ms), True),
    ("first", lambda row: format.milliseconds(row.first_token_ms), False),
    ("token", lambda row: format.milliseconds(row.decode_ms_per_token), False),
    ("tokens/s", lambda row: f"{row.tokens_per_second:.1f}", True),
    ("warm-up", lambda row: format.milliseconds(row.warmup_ms), True),
    ("KL", lambda row: "" if row.kl_to_full is None else f"{row.kl_to_full:.2g}", False),
    ("same", lambda row: "" if row.greedy_agreement is None else f"{row.greedy_agreement:.0%}", False),
]


def bench_table(result: BenchResult, width: int, glyphs: Glyphs) -> Table:
    """The policies side by side; `width` columns decide how many figures fit."""
    columns = [(heading, cell) for heading, cell, needs_room in _COLUMNS if width >= _WIDE or not needs_room]
    reference = _reference(result)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading, _ in columns:
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    if reference:
        table.add_column(f"vs {REFERENCE}", no_wrap=True)
    for row in result.rows:
        cells: list[str | Text] = [cell(row) for _, cell in columns]
        if reference:
            cells.append(_speed(row, reference, glyphs))
        table.add_row(*cells)
    return table


def conditions(result: BenchResult, glyphs: Glyphs) -> Text:
    """What the figures hold for, and what the columns mean."""
    model = result.model
    versions = ", ".join([*(f"{name} {version}" for name, version in result.versions.items()), result.date])
    lines = [
        f" {glyphs.dot} ".join(
            [
                f"{printable(model.name)} on {model.device}, {model.dtype}, {model.backend}",
                f"batch {result.batch}",
                f"{result.visual_tokens:,} visual tokens",
                f"{result.decode_tokens} tokens decoded",
            ]
        ),
        versions,
        "bits per visual element; first: time to the first token; token: each later one",
        _spread(result),
        _compilation(result),
    ]
    if any(row.is_peer for row in result.rows):
        lines.append("hf: caches of transformers with the model's own attention; their bits are those of all tokens")
    if any(row.kl_to_full is not None for row in result.rows):
        lines.append(
            f"KL in nats to {REFERENCE}, and how often the likeliest token is the same, over {result.fidelity_tokens} "
            "tokens through the packed cache"
        )
    return Text("\n".join(line for line in lines if line), style="dim")


def _compilation(result: BenchResult) -> str:
    """The longest first step with compiled layers; empty where none are."""
    compiled = [row.compile_ms for row in result.rows if row.compile_ms is not None]
    return f"decoder layers compiled, in {format.milliseconds(max(compiled))}" if compiled else ""


def slower(result: BenchResult, glyphs: Glyphs) -> str | None:
    """One sentence on the policies that cost time, and what they save for it; None where there are none."""
    reference = _reference(result)
    if reference is None:
        return None
    costs = [
        f"{row.policy} {row.decode_ms_per_token / reference.decode_ms_per_token:.2f}{glyphs.times} the time "
        f"({reference.kv_bytes / row.kv_bytes:.1f}{glyphs.times} less)"
        for row in result.rows
        if _is_slower(row, reference) and not row.is_peer
    ]
    return f"slower per token than {REFERENCE} here, for less KV memory: {', '.join(costs)}" if costs else None


def _spread(result: BenchResult) -> str:
    """How often a policy was timed, and how far its runs lie apart."""
    fewest, most = min(row.runs for row in result.rows), max(row.runs for row in result.rows)
    if most == 1:
        return "times of a single run"
    runs = f"{most} runs" if fewest == most else f"{fewest} to {most} runs"
    widest = max(
        (high - low) / row.decode_ms_per_token for row in result.rows for low, high in [row.decode_ms_per_token_range]
    )
    return f"times are medians of {runs}, whose times per token lie up to {widest:.0%} apart"


def _reference(result: BenchResult) -> BenchRow | None:
    return next((row for row in result.rows if row.policy == REFERENCE), None)


def _speed(row: BenchRow, reference: BenchRow, glyphs: Glyphs) -> Text:
    if row is reference:
        return Text("")
    ratio = reference.decode_ms_per_token / row.decode_ms_per_token
    if _is_slower(reference, row):
        return Text(f"{ratio:.2f}{glyphs.times} faster", style="green")
    if _is_slower(row, reference):
        return Text(f"{1 / ratio:.2f}{glyphs.times} slower", style="red")
    return Text("as fast")


def _is_slower(row: BenchRow, other: BenchRow) -> bool:
    """Whether its fastest run is slower than the other's slowest, by enough to be seen in two decimals."""
    return row.decode_ms_per_token_range[0] > 1.005 * other.decode_ms_per_token_range[1]


def _within(error: float | None, form: str) -> str:
    return "" if error is None else f" ±{error:{form}}"


# heading, cell, whether only wide terminals show it
_EVAL_COLUMNS: list[tuple[str, Callable[[EvalRow], str], bool]] = [
    ("policy", lambda row: row.label, False),
    ("accuracy", lambda row: f"{row.accuracy:.1%}{_within(row.standard_error, '.1%')}", False),
    ("KL", lambda row: f"{row.kl_to_full:.2g}{_within(row.kl_standard_error, '.1g')}", False),
    ("same", lambda row: f"{row.greedy_agreement:.1%}", False),
    ("bits", lambda row: f"{row.effective_bits:.2f}", False),
    ("KV", lambda row: format.size(round(row.kv_bytes)), False),
    ("metadata", lambda row: format.size(round(row.metadata_bytes)), True),
    ("search", lambda row: format.milliseconds(row.search_ms), True),
    ("tokens/s", lambda row: "" if row.tokens_per_second is None else f"{row.tokens_per_second:.1f}", True),
    ("weakest family", lambda row: f"{weakest_family(row)} {row.families[weakest_family(row)]:.0%}", True),
]


def weakest_family(row: EvalRow) -> str:
    """The family of questions with the lowest accuracy."""
    return min(row.families, key=lambda family: row.families[family])


def eval_table(result: EvalResult, width: int) -> Table:
    """One row a variant: accuracy with its standard error, distance to full precision, what the cache takes, speed."""
    columns = [(heading, cell) for heading, cell, needs_room in _EVAL_COLUMNS if width >= _WIDE or not needs_room]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading, _ in columns:
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for row in result.rows:
        table.add_row(*(cell(row) for _, cell in columns))
    return table


_CHOSEN = {"likelihood": "the right option is the likeliest", "letter": "the answer names the right option"}


def eval_conditions(result: EvalResult, width: int, glyphs: Glyphs) -> Text:
    """What the figures hold for, and what the columns mean that a table of this width has."""
    model = result.model
    versions = ", ".join([*(f"{name} {version}" for name, version in result.versions.items()), result.date])
    asked = f"{result.questions} questions on {result.clips} clips of {result.frames} frames, seed {result.seed}"
    lines = [
        f" {glyphs.dot} ".join([f"{printable(model.name)} on {model.device}, {model.dtype}, {model.backend}", asked]),
        versions,
        f"accuracy: {_CHOSEN[result.answer]}, through the packed cache; standard errors clustered by clip",
        f"KL in nats to {REFERENCE} and share of equal likeliest tokens, over the {REFERENCE} answers",
        "bits per visual element; KV: mean bytes of the cache"
        + ("; tokens/s: of the row's own answers" if width >= _WIDE else ""),
    ]
    return Text("\n".join(lines), style="dim")
