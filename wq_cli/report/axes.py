"""Two axes with ticks, points with names that keep clear of each other, and lines, on a Pillow drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import ImageDraw

from wq_cli.report import canvas
from wq_cli.report.canvas import GREY, INK, PALE, Colour, font

_LABEL, _SMALL = 18, 15
_LEAST_DOT, _DOT, _LARGE_DOT, _NAME_HEIGHT, _HEADING = 2, 7, 9, 20, 40
LEGEND_WIDTH = 220
# Okabe and Ito's colours, in an order in which neighbours differ in lightness too.
_COLOURS: tuple[Colour, ...] = (
    (0, 0, 0),
    (213, 94, 0),
    (0, 114, 178),
    (86, 180, 233),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
)


def colour_of(index: int) -> Colour:
    """Colour of the row with this number."""
    return _COLOURS[index % len(_COLOURS)]


def decades(values: Sequence[float]) -> tuple[float, float]:
    """Powers of ten around positive values, at least one apart."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) - 1e-9)
    return 10.0**low, 10.0 ** max(high, low + 1)


def round_values(low: float, high: float) -> list[float]:
    """Four to ten values between two, a step of 1, 2 or 5 times a power of ten apart."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(times * power for times in (5, 2, 1) if (high - low) / (times * power) >= 4)
    return [step * place for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class Axes:
    """A plot inside a drawing; larger y is further up.

    Args:
        draw: Where to draw.
        box: Left, top, right and bottom in pixels; the heading is inside, the labels of both axes outside.
        x_range, y_range: Values at the ends.
        log_y: Whether y is drawn by its logarithm, between powers of ten.
    """

    def __init__(
        self,
        draw: ImageDraw.ImageDraw,
        box: tuple[int, int, int, int],
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        log_y: bool = False,
    ) -> None:
        self._draw = draw
        self._left, self._top, self._right, self._bottom = box[0], box[1] + _HEADING, box[2], box[3]
        self._x_range, self._y_range, self._log_y = x_range, y_range, log_y
        self._taken: list[tuple[float, float, float]] = []
        self._marked: list[tuple[float, float]] = []

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Pixels of a point; what lies outside is put on the edge."""
        (x0, x1), (y0, y1) = self._x_range, self._y_range
        across = (x - x0) / (x1 - x0)
        up = math.log(max(y, y0) / y0) / math.log(y1 / y0) if self._log_y else (y - y0) / (y1 - y0)
        across, up = (min(max(share, 0.0), 1.0) for share in (across, up))
        return self._left + (self._right - self._left) * across, self._bottom - (self._bottom - self._top) * up

    def frame(self, heading: str, x_label: str, x_ticks: Sequence[float], percent: bool = False) -> None:
        """Heading, grid lines with their values, and the horizontal axis."""
        draw, (low, high) = self._draw, self._y_range
        draw.text((self._left - 80, self._top - _HEADING), heading, INK, font(_LABEL))
        if self._log_y:
            y_ticks = [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
        else:
            y_ticks = round_values(low, high)
        for value in y_ticks:
            _, y = self.place(self._x_range[0], value)
            draw.line([(self._left, y), (self._right, y)], PALE)
            text = f"{value:.1%}" if percent else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
            draw.text((self._left - 12, y), text, GREY, font(_SMALL), anchor="rm")
        for value in x_ticks:
            x, _ = self.place(value, low)
            draw.line([(x, self._bottom), (x, self._bottom + 6)], GREY)
            draw.text((x, self._bottom + 10), f"{value:,g}", GREY, font(_SMALL), anchor="ma")
        draw.text((self._right, self._bottom + 32), x_label, GREY, font(_SMALL), anchor="ra")
        draw.line([(self._left, self._bottom), (self._right, self._bottom)], GREY)

    def legend(self, names: Sequence[str]) -> None:
        """Names behind the marks of their series, right of the plot."""
        for index, name in enumerate(names):
            x, y = self._right + 30, self._top + 8 + index * (_NAME_HEIGHT + 4)
            self._mark(x, y, index)
            shown = canvas.fitted(self._draw, name, LEGEND_WIDTH - 50, _SMALL)
            self._draw.text((x + 18, y), shown, INK, font(_SMALL), anchor="lm")

    def mark(self, x: float, y: float, series: int, large: bool = False) -> None:
        """A point of a series; every seven series the shape changes, where colours begin again.

        On others in the same place it is smaller, so that they stand around it.
        """
        place = self.place(x, y)
        below = sum(math.dist(place, other) < _DOT / 2 for other in self._marked)
        self._marked.append(place)
        self._mark(*place, series, max(_LEAST_DOT, (_LARGE_DOT if large else _DOT) - 3 * below))

    def _mark(self, across: float, up: float, series: int, dot: int = _DOT) -> None:
        box, colour = (across - dot, up - dot, across + dot, up + dot), colour_of(series)
        shape = series // len(_COLOURS) % 3
        if shape == 0:
            self._draw.ellipse(box, colour)
        elif shape == 1:
            self._draw.rectangle(box, colour)
        else:
            self._draw.polygon([(box[0], box[3]), (across, box[1]), (box[2], box[3])], colour)

    def line(self, points: Sequence[tuple[float, float]], colour: Colour, width: int = 2) -> None:
        """Points joined in order."""
        self._draw.line([self.place(*point) for point in points], colour, width)

    def point(self, x: float, y: float, colour: Colour, name: str) -> None:
        """A dot and its name above it; where another name or dot is in the way, below it or else higher."""
        draw = self._draw
        across, up = self.place(x, y)
        draw.ellipse((across - _DOT, up - _DOT, across + _DOT, up + _DOT), colour)
        name = canvas.fitted(draw, name, (self._right - self._left) / 3, _SMALL)
        length = draw.textlength(name, font(_SMALL))
        left = min(max(across - length / 2, self._left + 4), self._right - length)
        top = up - _DOT - _NAME_HEIGHT
        beside = [place for begin, end, place in self._taken if left < end and begin < left + length]

        def is_free(top: float) -> bool:
            return all(abs(top - place) >= _NAME_HEIGHT for place in beside)

        below = up + _DOT
        if not is_free(top) and is_free(below) and below + _NAME_HEIGHT <= self._bottom:
            top = below
        while not is_free(top):
            top -= 4
        self._taken += [(left, left + length, top), (across - _DOT, across + _DOT, up - _NAME_HEIGHT / 2)]
        draw.text((left, top), name, INK, font(_SMALL))
