"""The window table of `wq ask` and the lines under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from wq_cli.console import printable
from wq_cli.report import format
from wq_cli.report.format import Glyphs
from wq_cli.results import AskResult, WindowResult

MOST_ROWS = 24
GROUPED_ROWS = 16
MARKED = 3
_BAR_CELLS = 10


@dataclass(frozen=True)
class _Row:
    """Windows that are neighbours in time, and the most relevant of them."""

    windows: Sequence[WindowResult]

    @property
    def name(self) -> str:
        first, last = self.windows[0], self.windows[-1]
        if len(self.windows) > 1:
            return f"{first.index}-{last.index}"
        return "tail" if first.role == "tail" else str(first.index)

    @property
    def best(self) -> WindowResult | None:
        scored = [window for window in self.windows if window.similarity is not None]
        return max(scored, key=_relevance, default=None)


def _relevance(window: WindowResult) -> float:
    return float("-inf") if window.relevance is None else window.relevance


def most_relevant(windows: Sequence[WindowResult]) -> list[WindowResult]:
    """The few windows the question is most about, best first; none where all scores are equal."""
    scored = [window for window in windows if window.relevance is not None]
    if len({window.relevance for window in scored}) < 2:
        return []
    return sorted(scored, key=_relevance, reverse=True)[:MARKED]


def shares(windows: Sequence[WindowResult]) -> dict[int, float]:
    """Relevance of each scored window as drawn: 0 the least relevant of this video, 1 the most, by window index."""
    scored = {window.index: window.relevance for window in windows if window.relevance is not None}
    low, high = min(scored.values(), default=0.0), max(scored.values(), default=0.0)
    return {index: (value - low) / (high - low) if high > low else 0.5 for index, value in scored.items()}


def window_table(result: AskResult, glyphs: Glyphs, every_row: bool = False) -> Table:
    """Windows over time: similarity, relevance, widths across the layers.

    More than `MOST_ROWS` windows are put together by time, unless `every_row`.
    """
    windows = result.windows
    per_row = 1 if every_row or len(windows) <= MOST_ROWS else -(-len(windows) // GROUPED_ROWS)
    rows = [_Row(windows[start : start + per_row]) for start in range(0, len(windows), per_row)]
    top = most_relevant(windows)
    drawn = shares(windows)
    longest = result.video.duration_seconds
    has_scores = any(window.similarity is not None for window in windows)

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("window" if per_row == 1 else "windows", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    if has_scores:
        table.add_column("similarity", justify="right", no_wrap=True)
        table.add_column("relevance", no_wrap=True)
    table.add_column(f"bits {glyphs.times} {'layers' if per_row == 1 else 'layer-windows'}")
    for row, width_cell in zip(rows, _width_cells(rows, glyphs), strict=True):
        is_top = any(window in top for window in row.windows)
        cells: list[str | Text] = [
            Text(f"{glyphs.mark if is_top else ' '} {row.name}"),
            format.span(row.windows[0].start_seconds, row.windows[-1].end_seconds, longest, glyphs),
        ]
        if has_scores:
            cells += [_similarity(row), _relevance_bar(row, drawn, glyphs)]
        table.add_row(*cells, width_cell, style="bold" if is_top else "")
    return table


def _similarity(row: _Row) -> str:
    return "" if row.best is None else f"{row.best.similarity:.4f}"


def _relevance_bar(row: _Row, drawn: dict[int, float], glyphs: Glyphs) -> Text:
    """A bar and the number; the role where a window takes no part."""
    best = row.best
    if best is None or best.relevance is None:
        return Text(row.windows[0].role if len(row.windows) == 1 else "", style="dim")
    share = drawn[best.index]
    full = round(share * _BAR_CELLS)
    return Text.assemble(
        (glyphs.bar * full, format.ramp(share)),
        (glyphs.track * (_BAR_CELLS - full), "dim"),
        f" {best.relevance:.2f}",
    )


def _count_widths(windows: Sequence[WindowResult]) -> Counter[tuple[int, int]]:
    """How often each (key bits, value bits) occurs over windows and layers."""
    return Counter(pair for window in windows for pair in zip(window.key_bits, window.value_bits, strict=True))


def _width_cells(rows: Sequence[_Row], glyphs: Glyphs) -> list[Text]:
    """The widths of each row with their counts, widest first, aligned between rows."""
    counts = [_count_widths(row.windows) for row in rows]
    widths = sorted({bits for count in counts for bits in count}, reverse=True)
    cells = [Text() for _ in rows]
    for bits in widths:
        parts = [f"{format.width_name(*bits)}{glyphs.times}{count[bits]}" if count[bits] else "" for count in counts]
        room = max(map(len, parts))
        for cell, part in zip(cells, parts, strict=True):
            cell.append(" " * (bits != widths[0]) + part.rjust(room), style=format.width_colour(bits[0]))
    return cells


def summary(result: AskResult, glyphs: Glyphs, verbose: bool = False) -> Table:
    """What was read, what answers, what the cache takes, how long it took."""
    longest = result.video.duration_seconds
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, parts in _facts(result, glyphs, verbose):
        grid.add_row(name, Text(f" {glyphs.dot} ").join(Text(part) for part in parts))
    if len(result.windows) > MOST_ROWS and (top := most_relevant(result.windows)):
        times = [f"{format.span(w.start_seconds, w.end_seconds, longest, glyphs)} ({_relevance(w):.2f})" for w in top]
        grid.add_row("most relevant", Text(", ".join(times)))
    return grid


def _facts(result: AskResult, glyphs: Glyphs, verbose: bool) -> list[tuple[str, list[str]]]:
    """Rows of the summary: a name and what is said about it."""
    video, model, memory, timing = result.video, result.model, result.memory, result.timing
    tail = sum(window.tokens for window in result.windows if window.role == "tail")
    whole = [window for window in result.windows if window.role != "tail"]
    missing = video.frames_requested is not None and video.frames_requested > video.frames
    smaller = memory.kv_bytes_full / memory.kv_bytes if memory.kv_bytes else 1.0
    stages = {"search": timing.search_ms, "first token": timing.first_token_ms}
    if verbose:
        stages = {"load": timing.load_ms, "decode": timing.decode_ms, "encode": timing.encode_ms, **stages}
    facts = [
        (
            "model",
            [printable(model.name), f"{model.device}, {model.dtype}", f"{model.backend}: {model.backend_reason}"],
        ),
        (
            "video",
            [
                f"{video.frames} frames" + (f" of {video.frames_requested} asked for" if missing else ""),
                f"{result.visual_tokens:,} visual tokens",
                f"{len(whole)} windows of {result.window_size}" + (f" + {tail}" if tail else ""),
            ],
        ),
        ("widths", _width_shares(whole)),
        (
            "cache",
            [
                f"{memory.effective_bits:.2f} bits per visual element",
                f"{format.size(memory.kv_bytes)}, {smaller:.1f}{glyphs.times} less than "
                f"{format.size(memory.kv_bytes_full)}",
            ],
        ),
        ("time", [f"{name} {format.milliseconds(value)}" for name, value in stages.items()]),
    ]
    return facts + _details(result) if verbose else facts


def _details(result: AskResult) -> list[tuple[str, list[str]]]:
    """What `--verbose` adds."""
    video, memory = result.video, result.memory
    clip = [printable(video.path), f"{video.width}x{video.height}", f"{video.duration_seconds:.2f} s"]
    if video.rotation_degrees:
        clip.append(f"turned by {video.rotation_degrees} degrees")
    stored = [f"scales and minima {format.size(memory.metadata_bytes)}"]
    sealing = f"sealing {format.milliseconds(result.timing.seal_ms)} of the first token's time"
    if memory.peak_bytes is not None:
        stored.append(f"peak {format.size(memory.peak_bytes)}")
    settings = [f"{key} {value}" for key, value in result.policy.settings.items() if value is not None]
    return [
        ("file", clip),
        ("frames at", [", ".join(f"{time:.2f}" for time in video.pts_seconds) + " s"]),
        ("policy", [result.policy.name, *settings]),
        ("memory", [*stored, sealing]),
    ]


def _width_shares(windows: Sequence[WindowResult]) -> list[str]:
    """Share of each width over windows and layers."""
    counts = _count_widths(windows)
    total = counts.total() or 1
    shown = {bits: f"{count / total:.0%}" if count / total >= 0.005 else "<1%" for bits, count in counts.items()}
    return [f"{format.width_name(*bits)} {shown[bits]}" for bits in sorted(shown, reverse=True)]


def speed(result: AskResult, glyphs: Glyphs) -> Text:
    """The line after the answer."""
    parts = [f"{result.answer_tokens} tokens"]
    if result.timing.tokens_per_second is not None:
        parts.append(f"{result.timing.tokens_per_second:.1f} tokens/s")
    if result.timing.decode_ms_per_token is not None:
        parts.append(f"{result.timing.decode_ms_per_token:.1f} ms per token")
    if result.finish_reason == "length":
        parts.append("cut at --max-new-tokens")
    return Text(f" {glyphs.dot} ".join(parts), style="dim")
