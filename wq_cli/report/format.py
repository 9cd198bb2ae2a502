"""Numbers, times and sizes as text, in two alphabets: Unicode, and ASCII for terminals that have nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Okabe and Ito's colours for colour-blind readers, lightness adjusted to stand on black and on white.
WIDTH_COLOURS = {16: "#d55e00", 8: "#cc8a00", 4: "#3fa0d8", 2: "#5f7ba8"}
LOW_COLOUR, HIGH_COLOUR = (74, 111, 165), (213, 94, 0)


@dataclass(frozen=True)
class Glyphs:
    """The signs that drawings are made of.

    Attributes:
        levels: From empty to full.
        dot: Between the parts of a line; `blank` stands for a window that is not scored.
        widths: Sign of each width in bits; one between two of them takes the lower one's.
    """

    levels: str
    bar: str
    track: str
    tick: str
    times: str
    dash: str
    dot: str
    blank: str
    mark: str
    widths: dict[int, str]

    def width(self, bits: int) -> str:
        return self.widths[nearest_below(bits, self.widths)]


UNICODE = Glyphs("▁▂▃▄▅▆▇█", "━", "─", "┬", "×", "–", "·", "·", "▶", {16: "█", 8: "▓", 4: "▒", 2: "░"})
ASCII = Glyphs(".:-=+*%@", "=", "-", "+", "x", "-", "|", " ", ">", {16: "#", 8: "8", 4: "4", 2: "."})


def nearest_below(bits: int, known: Iterable[int]) -> int:
    """The largest known width that is at most `bits`, else the smallest one."""
    widths = sorted(known)
    return max((width for width in widths if width <= bits), default=widths[0])


def glyphs_for(console: Console) -> Glyphs:
    """The alphabet that the console's encoding carries."""
    return ASCII if console.options.ascii_only else UNICODE


def width_colour(bits: int) -> str:
    """Colour of a width."""
    return WIDTH_COLOURS[nearest_below(bits, WIDTH_COLOURS)]


def ramp(value: float) -> str:
    """Colour of a relevance from 0 (blue) to 1 (orange)."""
    share = min(max(value, 0.0), 1.0)
    return "#" + "".join(
        f"{round(low + share * (high - low)):02x}" for low, high in zip(LOW_COLOUR, HIGH_COLOUR, strict=True)
    )


def clock(seconds: float, longest: float) -> str:
    """Seconds with one decimal, or h:mm:ss where the video is longer than a minute."""
    if longest < 60:
        return f"{seconds:.1f}"
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def span(start: float, end: float, longest: float, glyphs: Glyphs) -> str:
    """A time range; a single time where both ends read the same."""
    first, last = clock(start, longest), clock(end, longest)
    return (first if first == last else f"{first}{glyphs.dash}{last}") + (" s" if longest < 60 else "")


def shortened(text: str, columns: int) -> str:
    """`text` in at most so many columns of a terminal, with dots where its end is left out."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= columns else set_cell_size(text, max(columns - 3, 0)).rstrip() + "..."


def size(count: int) -> str:
    """Bytes in the binary unit that leaves one to three digits before the point."""
    value, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "bytes" or value >= 99.95 else f"{value:.1f} {units[0]}"


def milliseconds(value: float) -> str:
    """A duration in the unit that suits it, three digits."""
    if value >= 9995:
        return f"{value / 1000:.1f} s"
    if value >= 999.5:
        return f"{value / 1000:.2f} s"
    return f"{value:.0f} ms" if value >= 99.5 else f"{value:.1f} ms" if value >= 9.95 else f"{value:.2f} ms"


def width_name(key_bits: int, value_bits: int) -> str:
    """`4b`, or `4/2b` where keys and values differ."""
    return f"{key_bits}b" if key_bits == value_bits else f"{key_bits}/{value_bits}b"
