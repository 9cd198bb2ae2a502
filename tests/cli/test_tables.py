"""Window tables, summaries and the bench table: the figures in them, and that they fit."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
import results_by_hand as by_hand
from rich.console import Console, RenderableType

from wq_cli.report import comparison, format, summary, tables
from wq_cli.report.format import ASCII, UNICODE


def drawn(renderable: RenderableType, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return lines


def test_few_windows_have_a_row_each() -> None:
    result = by_hand.ask_result(windows=17, duration=8.5)
    lines = drawn(tables.window_table(result.windows, 8.5, UNICODE))
    assert len(lines) == 2 + 17
    peak = max(
        (window for window in result.windows if window.relevance is not None), key=lambda window: window.relevance or 0
    )
    row = lines[2 + peak.index]
    assert row.split()[:4] == ["▶", str(peak.index), f"{peak.start_seconds:.1f}–{peak.end_seconds:.1f}", "s"]
    assert f"{peak.similarity:.4f}" in row and f"{peak.relevance:.2f}" in row and "16b×8" in row
    assert lines[2].split()[-2:] == ["first", "16b×8"]
    assert lines[-1].split()[0] == "tail"
    assert sum("▶" in line for line in lines) == tables.MARKED


@pytest.mark.parametrize("windows", [33, 196, 612, 2000])
def test_many_windows_are_put_together_by_time(windows: int) -> None:
    result = by_hand.ask_result(windows=windows, duration=100.0)
    lines = drawn(tables.window_table(result.windows, 100.0, UNICODE))[2:]
    assert len(lines) <= tables.GROUPED_ROWS
    counted = sum(int(count) for line in lines for count in re.findall(r"b×(\d+)", line))
    assert counted == windows * by_hand.LAYERS
    spans = [re.search(r"(\d+)-(\d+)", line) for line in lines]
    assert [int(span[1]) for span in spans if span][1:] == [int(span[2]) + 1 for span in spans[:-1] if span]
    best = max(window.relevance or 0 for window in result.windows)
    assert any("▶" in line and f"{best:.2f}" in line for line in lines)
    assert len(drawn(tables.window_table(result.windows, 100.0, UNICODE, every_row=True))) == windows + 2


def test_bars_grow_with_relevance_also_where_raw_scores_are_tiny() -> None:
    windows = [
        replace(window, relevance=None if window.relevance is None else window.relevance / 1000)
        for window in by_hand.make_windows(17, 8.0)
    ]
    lines = drawn(tables.window_table(windows, 8.0, UNICODE))[3:-1]
    bars = [line.count("━") for line in lines]
    scores = [window.relevance or 0.0 for window in windows[1:-1]]
    assert sorted(range(15), key=scores.__getitem__) == sorted(range(15), key=lambda i: (bars[i], scores[i]))
    assert (min(bars), max(bars)) == (0, 10)


def test_equal_scores_mark_nothing() -> None:
    windows = [replace(window, relevance=0.5, role="scored") for window in by_hand.make_windows(10, 8.0)]
    assert tables.most_relevant(windows) == []
    assert not any("▶" in line for line in drawn(tables.window_table(windows, 8.0, UNICODE)))


def test_policies_without_scores_have_no_score_columns() -> None:
    windows = [replace(window, similarity=None, relevance=None) for window in by_hand.make_windows(10, 8.0)]
    lines = drawn(tables.window_table(windows, 8.0, UNICODE))
    assert "similarity" not in lines[0] and "relevance" not in lines[0]


def test_keys_and_values_of_different_widths() -> None:
    windows = [replace(window, key_bits=(4,) * 8, value_bits=(2,) * 8) for window in by_hand.make_windows(3, 8.0)]
    assert drawn(tables.window_table(windows, 8.0, UNICODE))[-1].split()[-1] == "4/2b×8"


@pytest.mark.parametrize("windows", [1, 2, 17, 612])
def test_ascii_is_enough(windows: int) -> None:
    result = by_hand.ask_result(windows=windows, duration=7200.0)
    lines = drawn(tables.window_table(result.windows, 7200.0, ASCII)) + drawn(summary.ask_summary(result, ASCII, True))
    # The rule under the headings is Rich's, which replaces it itself where the encoding is narrow.
    assert all(line.isascii() for line in lines if set(line.strip()) != {"─"})


@pytest.mark.parametrize(
    ("seconds", "longest", "shown"),
    [(0, 8, "0.0"), (7.96, 59.9, "8.0"), (0, 60, "0:00:00"), (59.99, 61, "0:00:59"), (3725.2, 9000, "1:02:05")],
)
def test_clock(seconds: float, longest: float, shown: str) -> None:
    assert format.clock(seconds, longest) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1_023_999, "1.0 MiB"),
        (500 * 2**20, "500 MiB"),
        (3 * 2**30, "3.0 GiB"),
    ],
)
def test_sizes(count: int, shown: str) -> None:
    assert format.size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0712, "0.07 ms"), (9.96, "10.0 ms"), (99.6, "100 ms"), (1000, "1.00 s"), (12345, "12.3 s")]
)
def test_durations(value: float, shown: str) -> None:
    assert format.milliseconds(value) == shown


def test_summary_has_the_figures_asked_for() -> None:
    result = by_hand.ask_result(windows=17)
    text = "\n".join(drawn(summary.ask_summary(result, UNICODE)))
    for figure in (
        "32 frames",
        "528 visual tokens",
        "16 windows of 32 + 16",
        "3.40 bits",
        "195 KiB, 5.2× less than 1.0 MiB",
    ):
        assert figure in text
    for figure in ("search 0.43 ms", "first token 512 ms", "demo", "cpu, float32", "torch: no GPU"):
        assert figure in text
    shares = [int(share) for share in re.findall(r"\d+b (\d+)%", text)]
    assert len(shares) == 3 and 98 <= sum(shares) <= 102
    assert drawn(summary.speed(result, UNICODE)) == ["3 tokens · 90.9 tokens/s · 11.0 ms per token"]
    fused = replace(result, timing=replace(result.timing, steps="CUDA graph", compile_ms=12_300.0))
    assert drawn(summary.speed(fused, UNICODE)) == [
        "3 tokens · 90.9 tokens/s · 11.0 ms per token · CUDA graph · compiled in 12.3 s"
    ]


def test_summary_says_when_frames_are_missing_and_verbose_says_which_were_read() -> None:
    result = by_hand.ask_result()
    result = replace(result, video=replace(result.video, frames_requested=64, rotation_degrees=90))
    assert "32 frames of 64 asked for" in "\n".join(drawn(summary.ask_summary(result, UNICODE)))
    text = " ".join(" ".join(drawn(summary.ask_summary(result, UNICODE, verbose=True))).split())
    assert "0.12, 0.38, 0.62" in text and "turned by 90 degrees" in text and "alpha 2.0" in text


def test_bench_table_has_a_row_a_policy_and_fits() -> None:
    result = by_hand.bench_result()
    for width, columns in ((80, 8), (200, 13)):
        lines = drawn(comparison.bench_table(result, width, UNICODE), width)
        assert len(re.split(r"\s{2,}", lines[0].strip())) == columns
        assert [line.split()[0] for line in lines[2:]] == ["fp16", "windowquant", "rtn4", "rtn2"]
    rtn2 = drawn(comparison.bench_table(result, 80, UNICODE))[-1]
    assert re.split(r"\s{2,}", rtn2.strip()) == [
        "rtn2", "3.00", "186 KiB", "120 ms", "12.5 ms", "0.053", "84%", "1.25× slower"
    ]  # fmt: skip


def test_bench_says_what_a_slower_policy_gains() -> None:
    assert comparison.slower(by_hand.bench_result(), UNICODE) == (
        "slower per token than fp16 here, for less KV memory: rtn2 1.25× the time (5.3× less)"
    )
    assert comparison.slower(by_hand.bench_result(rows=by_hand.bench_result().rows[:3]), UNICODE) is None


def test_bench_says_how_often_it_timed_and_how_far_the_runs_lie_apart() -> None:
    rows = [replace(row, runs=runs) for row, runs in zip(by_hand.bench_result().rows, (5, 5, 2, 5), strict=True)]
    rows[1] = replace(rows[1], decode_ms_per_token_range=(7.6, 8.6))
    said = comparison.conditions(by_hand.bench_result(rows=tuple(rows)), UNICODE).plain
    assert "times are medians of 2 to 5 runs, whose times per token lie up to 12% apart" in said
    assert "compiled" not in said
    fused = tuple(replace(row, compile_ms=ms) for row, ms in zip(rows, (12_300.0, 400.0, None, 500.0), strict=True))
    said = comparison.conditions(by_hand.bench_result(rows=fused), UNICODE).plain
    assert "decoder layers compiled, in 12.3 s" in said
    once = tuple(replace(row, runs=1) for row in rows)
    assert "times of a single run" in comparison.conditions(by_hand.bench_result(rows=once), UNICODE).plain


@pytest.mark.parametrize(("ms", "said"), [(9.0, "1.11× faster"), (9.6, "as fast"), (10.4, "as fast"), (11, "slower")])
def test_bench_claims_no_difference_that_lies_within_the_spread(ms: float, said: str) -> None:
    rows = (by_hand.bench_row("fp16", 16, 1000, 10.0, None, None), by_hand.bench_row("rtn4", 4, 250, ms, None, None))
    result = by_hand.bench_result(rows=rows)
    assert drawn(comparison.bench_table(result, 80, UNICODE))[-1].strip().endswith(said)
    assert (comparison.slower(result, UNICODE) is not None) == (said == "slower")


def test_bench_without_the_full_precision_row_compares_with_nothing() -> None:
    result = by_hand.bench_result()
    result = replace(result, rows=result.rows[1:])
    assert "vs fp16" not in drawn(comparison.bench_table(result, 80, UNICODE))[0]
    assert comparison.slower(result, UNICODE) is None
