"""The map of `wq inspect` in the terminal and as a picture, and the plot of `wq bench`."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import results_by_hand as by_hand
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.cells import cell_len
from rich.console import Console

from wq_cli.report import canvas, heatmap, plot, png
from wq_cli.report.format import ASCII, UNICODE, Glyphs
from wq_cli.results import InspectResult


def drawn(result: InspectResult, width: int, glyphs: Glyphs = UNICODE, every_prompt: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(heatmap.heat_map(result, width, glyphs, every_prompt))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@given(count=st.integers(1, 1000), width=st.integers(-5, 200))
def test_bins_show_every_window_in_order(count: int, width: int) -> None:
    cells = heatmap.bins(count, width)
    assert len(cells) <= max(width, 1)
    shown = [index for cell in cells for index in cell]
    assert sorted(set(shown)) == list(range(count))
    assert shown == sorted(shown)
    assert all(len(cell) >= 1 for cell in cells)


def test_the_strip_rises_and_falls_with_the_relevance() -> None:
    result = by_hand.inspect_result(windows=52, prompts=1)
    strip = drawn(result, 80)[1][6:]
    assert len(strip) == 52
    for sign, window in zip(strip, result.windows[0], strict=True):
        if window.role == "scored":
            scores = [w.relevance or 0.0 for w in result.windows[0] if w.role == "scored"]
            share = ((window.relevance or 0.0) - min(scores)) / (max(scores) - min(scores))
            assert UNICODE.levels.index(sign) == round(7 * share)
        else:
            assert sign == UNICODE.blank


def test_layers_show_their_bits_and_sensitivity() -> None:
    result = by_hand.inspect_result(windows=60, prompts=1)
    rows = [line for line in drawn(result, 80) if "0.8" in line or "0.9" in line][-8:]
    sign = {16: "█", 4: "▒", 2: "░"}
    for layer, row in enumerate(rows):
        expected = "".join(sign[window.key_bits[layer]] for window in result.windows[0])
        assert row.split()[:3] == [str(layer), expected, f"{result.layers[layer].sensitivity:.3f}"]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize(("windows", "prompts", "layers"), [(1, 1, 1), (3, 2, 8), (612, 5, 28)])
def test_maps_fit(windows: int, prompts: int, layers: int, width: int, glyphs: Glyphs) -> None:
    result = by_hand.inspect_result(windows=windows, prompts=prompts, layers=layers, duration=7200.0)
    lines = drawn(result, width, glyphs, every_prompt=True)
    assert max(map(len, lines)) <= width
    if glyphs is ASCII:
        assert "".join(lines).replace(by_hand.PROMPTS[-1], "").isascii()


@pytest.mark.parametrize("windows", [1, 7, 17, 29, 52, 612])
@pytest.mark.parametrize("width", [20, 45, 80, 133])
def test_ticks_stand_where_their_windows_begin(windows: int, width: int) -> None:
    result = by_hand.inspect_result(windows=windows, prompts=1, duration=7200.0)
    lines = drawn(result, width)
    ticks = next(at for at, line in enumerate(lines) if UNICODE.tick in line)
    cells = heatmap.bins(windows, min(width - 20, heatmap.MOST_CELLS))
    labels = dict(zip(re.finditer(r"[┬]", lines[ticks][6:]), lines[ticks + 1].split(), strict=False))
    assert labels or len(cells) < 7
    for tick, label in labels.items():
        cell = tick.start()
        assert cell == 0 or cells[cell] != cells[cell - 1], "not inside a window"
        start = int(result.windows[0][cells[cell][0]].start_seconds)
        assert label == f"{start // 3600}:{start // 60 % 60:02}:{start % 60:02}"


@pytest.mark.parametrize("width", [45, 80, 120])
def test_a_long_prompt_takes_one_line_and_the_place_stays_beside_it(width: int) -> None:
    texts = ("a very long 一只狗 prompt " * 20, "a dog")
    lines = drawn(by_hand.inspect_result(texts=texts), width)
    assert lines[0].strip().startswith("a very long") and "...  ▶ " in lines[0]
    assert lines[1].strip()[0] == UNICODE.blank
    assert lines[2].strip().startswith("a dog  ▶")
    assert max(map(cell_len, lines)) <= width
    assert sum("sensitivity" in line and "layer bits" in line for line in lines) == 1


def test_a_policy_without_scores_says_so() -> None:
    result = by_hand.inspect_result(prompts=1)
    windows = tuple(replace(window, similarity=None, relevance=None) for window in result.windows[0])
    lines = drawn(replace(result, windows=(windows,)), 80)
    assert "not scored by policy windowquant" in lines[0]
    few = tuple(replace(window, relevance=None) for window in result.windows[0])
    assert "too few windows to compare" in drawn(replace(result, windows=(few,)), 80)[0]


def frames(count: int, height: int, width: int) -> np.ndarray:
    """Frame i is of one colour, (i, 0, 255)."""
    made = np.zeros((count, height, width, 3), np.uint8)
    made[..., 0], made[..., 2] = np.arange(count, dtype=np.uint8)[:, None, None], 255
    return made


def opened(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize(("windows", "prompts", "layers"), [(1, 1, 1), (10, 1, 8), (612, 5, 28)])
@pytest.mark.parametrize("shape", [(1, 96, 96), (100, 216, 384), (5, 384, 216)])
def test_picture_colours_every_window(windows: int, prompts: int, layers: int, shape: tuple[int, int, int]) -> None:
    result = by_hand.inspect_result(windows=windows, prompts=prompts, layers=layers, duration=7200.0)
    picture = opened(png.draw_map(result, frames(*shape)))
    assert picture.shape[1] == png.WIDTH
    tokens = np.array([window.tokens for window in result.windows[0]])
    # The strongest window of the first prompt is the bright end of the ramp, at its place.
    scored = [window for window in result.windows[0] if window.relevance is not None]
    if len(scored) > 1:
        best = max(scored, key=lambda window: window.relevance or 0.0)
        left, right = 110, png.WIDTH - 230
        share = (tokens[: best.index].sum() + tokens[best.index] / 2) / tokens.sum()
        strip = picture[100 + 40 : 100 + 40 + 56, left + int(share * (right - left))]
        assert (strip == canvas.ramp(1.0)).all(axis=-1).mean() > 0.9
    # Nothing is drawn into the margins.
    assert (picture[:20] == 255).all() and (picture[-20:] == 255).all() and (picture[:, -20:] == 255).all()


@pytest.mark.parametrize("tokens", [1, 8, 31])
def test_a_tail_is_as_wide_as_its_tokens(tokens: int) -> None:
    made = by_hand.inspect_result(windows=6, prompts=1)
    *whole, tail = made.windows[0]
    result = replace(made, windows=((*whole, replace(tail, tokens=tokens)),))
    strip = opened(png.draw_map(result, frames(4, 96, 96)))[100 + 40 + 28, 110 : png.WIDTH - 230]
    pale = (strip == canvas.PALE).all(axis=-1)
    grey_at_the_end = len(pale) - np.flatnonzero(~pale)[-1] - 1
    assert grey_at_the_end == pytest.approx(len(pale) * tokens / (5 * 32 + tokens), abs=1)


def test_the_marker_leaves_a_long_prompt_alone() -> None:
    """What a prompt without any text shows between title and strip is the marker; the prompt's own rows end above."""
    made = by_hand.inspect_result(prompts=1)
    marker, long = (
        opened(png.draw_map(replace(made, prompts=(text,)), frames(4, 96, 96)))[100:140, 110 : png.WIDTH - 230]
        for text in (" ", "gjpq(,) " * 60)
    )
    rows_of_marker = (marker != 255).any(axis=(1, 2))
    assert rows_of_marker.any()
    assert (long[rows_of_marker] == marker[rows_of_marker]).all()


def test_thumbnails_stand_in_the_order_of_time() -> None:
    picture = opened(png.draw_map(by_hand.inspect_result(prompts=1), frames(60, 96, 96)))
    row = next(line for line in picture if ((line[:, 2] == 255) & (line[:, 0] < 60)).sum() > 500)
    reds = [pixel[0] for pixel in row if pixel[2] == 255 and pixel[0] < 60]
    assert reds == sorted(reds)
    assert len(set(reds)) >= 10


def test_every_pair_of_ramp_steps_differs_in_lightness() -> None:
    luminance = [np.dot(canvas.ramp(step / 20), (0.2126, 0.7152, 0.0722)) for step in range(21)]
    assert (np.diff(luminance) > 1).all()


@pytest.mark.parametrize("policies", [1, 4, 12])
def test_plot_grows_with_the_policies(policies: int) -> None:
    rows = [by_hand.bench_row(f"p{i}", 2.0 + i, 1000 * (i + 1), 5.0 + i, 0.1 / (i + 1), 0.9) for i in range(policies)]
    picture = opened(plot.draw_plot(by_hand.bench_result(rows=tuple(rows))))
    assert picture.shape[1] == plot.WIDTH
    # Bars of one place in the row start at the same column, so that column holds two bars a policy.
    column = (picture[-2 * (90 + policies * 34) - 50 :, 230] != 255).any(axis=-1)
    assert np.diff(column.astype(int)).clip(0).sum() == 2 * policies


def test_plot_without_fidelity_has_bars_alone() -> None:
    rows = tuple(replace(row, kl_to_full=None, greedy_agreement=None) for row in by_hand.bench_result().rows)
    with_scatter, without = plot.draw_plot(by_hand.bench_result()), plot.draw_plot(by_hand.bench_result(rows=rows))
    assert opened(without).shape[0] < opened(with_scatter).shape[0] - 300


def test_bars_are_proportional() -> None:
    rows = (by_hand.bench_row("a", 16, 4000, 8.0, None, None), by_hand.bench_row("b", 4, 1000, 2.0, None, None))
    picture = opened(plot.draw_plot(by_hand.bench_result(rows=rows)))
    runs = [(picture == colour).all(axis=-1).sum(axis=1).max() for colour in ((0, 0, 0), (213, 94, 0))]
    assert runs[0] / runs[1] == pytest.approx(4, rel=0.02)
