"""The map of `wq inspect` in a terminal: relevance of each window to each prompt over time, widths in each layer.

The horizontal axis counts windows, so that the windows inside one frame stay apart; the labels give their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.text import Text

from wq_cli.console import printable
from wq_cli.report import format
from wq_cli.report.format import Glyphs
from wq_cli.report.tables import most_relevant, shares
from wq_cli.results import InspectResult, LayerResult, WindowResult

MOST_CELLS = 120
_LEFT, _RIGHT, _TICK = 6, 14, 12
_LEAST_PROMPT = 12


def heat_map(result: InspectResult, width: int, glyphs: Glyphs, every_prompt: bool = False) -> RenderableType:
    """The whole map.

    Args:
        result: What to draw.
        width: Columns of the terminal.
        glyphs: Alphabet.
        every_prompt: Draw the layers for each prompt, not for the first one alone.
    """
    cells = bins(len(result.windows[0]), min(width - _LEFT - _RIGHT, MOST_CELLS))
    parts: list[RenderableType] = []
    for prompt, windows in zip(result.prompts, result.windows, strict=True):
        parts += [_heading(prompt, windows, result, width, glyphs), _strip(windows, cells, glyphs)]
    parts += [*_axis(result, cells, glyphs), ""]
    shown = len(result.prompts) if every_prompt else 1
    for prompt, windows in list(zip(result.prompts, result.windows, strict=True))[:shown]:
        parts.append(_legend(prompt, windows, result, len(cells), width, glyphs))
        parts += _layers(windows, result.layers, cells, glyphs)
        parts += [*_axis(result, cells, glyphs), ""]
    return Group(*parts[:-1])


def bins(count: int, width: int) -> list[range]:
    """The windows that each cell of a line shows: several cells a window, or several windows a cell."""
    width = max(width, 1)
    if count <= width:
        return [range(index, index + 1) for index in range(count) for _ in range(width // count)]
    return [range(cell * count // width, (cell + 1) * count // width) for cell in range(width)]


def _heading(prompt: str, windows: Sequence[WindowResult], result: InspectResult, width: int, glyphs: Glyphs) -> Text:
    """The prompt on one line, and where the video is most about it."""
    where = Text()
    top = most_relevant(windows)
    if top:
        span = format.span(top[0].start_seconds, top[0].end_seconds, result.video.duration_seconds, glyphs)
        where.append(f"  {glyphs.mark} {span}", style=format.ramp(1.0))
    elif not shares(windows):
        has_scores = any(window.similarity is not None for window in windows)
        why = "too few windows to compare" if has_scores else f"not scored by policy {result.policy.name}"
        where.append(f"  {why}", style="dim")
    room = max(width - _LEFT - where.cell_len, _LEAST_PROMPT)
    return Text.assemble(" " * _LEFT, (format.shortened(printable(prompt), room), "bold"), where)


def _strip(windows: Sequence[WindowResult], cells: Sequence[range], glyphs: Glyphs) -> Text:
    drawn = shares(windows)
    line = Text(" " * _LEFT)
    for cell in cells:
        scored = [drawn[windows[index].index] for index in cell if windows[index].index in drawn]
        if scored:
            level = round(max(scored) * (len(glyphs.levels) - 1))
            line.append(glyphs.levels[level], style=format.ramp(max(scored)))
        else:
            line.append(glyphs.blank, style="dim")
    return line


def _axis(result: InspectResult, cells: Sequence[range], glyphs: Glyphs) -> list[Text]:
    """Ticks where windows begin, and their times."""
    windows, longest = result.windows[0], result.video.duration_seconds
    begins = [cell for cell in range(len(cells)) if cell == 0 or cells[cell] != cells[cell - 1]]
    places = [0]
    for cell in begins:
        if cell >= places[-1] + _TICK:
            places.append(cell)
    ticks, labels = "", ""
    for place, end in pairwise([*places, len(cells)]):
        room = end - place
        time = format.clock(windows[cells[place][0]].start_seconds, longest)
        ticks += (glyphs.tick + glyphs.track * (room - 1))[:room]
        labels += time.ljust(room) if len(time) <= room else " " * room
    unit = " s" if longest < 60 else ""
    return [Text(" " * _LEFT + ticks, style="dim"), Text(" " * _LEFT + labels.rstrip() + unit, style="dim")]


def _legend(
    prompt: str, windows: Sequence[WindowResult], result: InspectResult, cells: int, width: int, glyphs: Glyphs
) -> Text:
    """What the signs of the layer map mean, and the heading of the sensitivities."""
    used = {bits for window in windows for bits in window.key_bits}
    split = any(window.key_bits != window.value_bits for window in windows)
    text = Text("layer ")
    text.append("bits of the keys" if split else "bits", style="bold")
    for bits in sorted(used, reverse=True):
        text.append(f"  {glyphs.width(bits)} {bits}", style=format.width_colour(bits))
    heading = " sensitivity" if any(layer.sensitivity is not None for layer in result.layers) else ""
    room = width - text.cell_len - len("  for ") - len(heading)
    if len(result.prompts) > 1 and room >= _LEAST_PROMPT:
        text.append(f"  for {format.shortened(printable(prompt), room)}", style="dim")
    if heading:
        text.pad_right(max(_LEFT + cells - text.cell_len, 0))
        text.append(heading, style="bold")
    return text


def _layers(
    windows: Sequence[WindowResult], layers: Sequence[LayerResult], cells: Sequence[range], glyphs: Glyphs
) -> Iterator[Text]:
    """One line a layer: the widest width in each cell, then the sensitivity."""
    known = [layer.sensitivity for layer in layers if layer.sensitivity is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    for layer in layers:
        line = Text(f"{layer.index:>{_LEFT - 1}} ", style="dim")
        for cell in cells:
            bits = max(windows[index].key_bits[layer.index] for index in cell)
            line.append(glyphs.width(bits), style=f"not dim {format.width_colour(bits)}")
        if layer.sensitivity is not None:
            share = (layer.sensitivity - low) / (high - low) if high > low else 1.0
            line.append(f" {layer.sensitivity:.3f} " + glyphs.bar * round(1 + 5 * share))
        yield line
