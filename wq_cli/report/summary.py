"""The lines around a table or a map: what was read, what answered, what the cache takes, how long it took."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from wq_cli.console import printable
from wq_cli.report import format
from wq_cli.report.format import Glyphs
from wq_cli.report.tables import MOST_ROWS, count_widths, most_relevant, relevance_of
from wq_cli.results import AskResult, InspectResult, MemoryResult, TimingResult, WindowResult

# A name, and what is said about it in a few parts.
Fact = tuple[str, list[str]]


def ask_summary(result: AskResult, glyphs: Glyphs, verbose: bool = False) -> Table:
    """What stands between the window table and the answer."""
    facts = _inputs(result, result.windows)
    facts += [_widths(result.windows), _cache(result.memory, glyphs), _times(result.timing, verbose)]
    if verbose:
        facts += [*_details(result), _more_memory(result)]
    if len(result.windows) > MOST_ROWS and (top := most_relevant(result.windows)):
        longest = result.video.duration_seconds
        spans = [format.span(w.start_seconds, w.end_seconds, longest, glyphs) for w in top]
        facts.append(("best", [f"{span} ({relevance_of(w):.2f})" for span, w in zip(spans, top, strict=True)]))
    return _grid(facts, glyphs)


def inspect_summary(result: InspectResult, glyphs: Glyphs, verbose: bool = False) -> Table:
    """What stands over the map."""
    facts = _inputs(result, result.windows[0])
    several = len(result.prompts) > 1
    for prompt, windows in zip(result.prompts, result.windows, strict=True):
        name, parts = _widths(windows)
        facts.append((name, [*parts, *([f"for {printable(prompt)}"] if several else [])]))
    return _grid(facts + _details(result) if verbose else facts, glyphs)


def speed(result: AskResult, glyphs: Glyphs) -> Text:
    """The line after the answer."""
    parts = [f"{result.answer_tokens} tokens"]
    if result.timing.tokens_per_second is not None:
        parts.append(f"{result.timing.tokens_per_second:.1f} tokens/s")
    if result.timing.decode_ms_per_token is not None:
        parts.append(f"{result.timing.decode_ms_per_token:.1f} ms per token")
    if result.timing.steps == "CUDA graph":
        parts.append("CUDA graph")
    if result.timing.compile_ms is not None:
        parts.append(f"compiled in {format.milliseconds(result.timing.compile_ms)}")
    if result.finish_reason == "length":
        parts.append("cut by --max-new-tokens")
    return Text(f" {glyphs.dot} ".join(parts), style="dim")


def _grid(facts: Sequence[Fact], glyphs: Glyphs) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, parts in facts:
        grid.add_row(name, Text(f" {glyphs.dot} ".join(parts)))
    return grid


def _inputs(result: AskResult | InspectResult, windows: Sequence[WindowResult]) -> list[Fact]:
    video, model = result.video, result.model
    tail = sum(window.tokens for window in windows if window.role == "tail")
    whole = sum(window.role != "tail" for window in windows)
    fewer = video.frames_requested is not None and video.frames_requested > video.frames
    return [
        (
            "model",
            [printable(model.name), f"{model.device}, {model.dtype}", f"{model.backend}: {model.backend_reason}"],
        ),
        (
            "video",
            [
                f"{video.frames} frames" + (f" of {video.frames_requested} asked for" if fewer else ""),
                f"{result.visual_tokens:,} visual tokens",
                f"{whole} windows of {result.window_size}" + (f" + {tail}" if tail else ""),
            ],
        ),
    ]


def _widths(windows: Sequence[WindowResult]) -> Fact:
    """Share of each width over whole windows and layers."""
    counts = count_widths([window for window in windows if window.role != "tail"])
    total = counts.total() or 1
    shares = {bits: f"{count / total:.0%}" if count / total >= 0.005 else "<1%" for bits, count in counts.items()}
    return "widths", [f"{format.width_name(*bits)} {shares[bits]}" for bits in sorted(shares, reverse=True)]


def _cache(memory: MemoryResult, glyphs: Glyphs) -> Fact:
    smaller = memory.kv_bytes_full / memory.kv_bytes if memory.kv_bytes else 1.0
    stored, full = format.size(memory.kv_bytes), format.size(memory.kv_bytes_full)
    compared = f"{smaller:.1f}{glyphs.times} less than {full}" if smaller >= 1.05 else f"{full} at full precision"
    return "cache", [f"{memory.effective_bits:.2f} bits per visual element", f"{stored}, {compared}"]


def _times(timing: TimingResult, verbose: bool) -> Fact:
    stages = {"search": timing.search_ms, "first token": timing.first_token_ms}
    if verbose:
        stages = {"load": timing.load_ms, "decode": timing.decode_ms, "encode": timing.encode_ms, **stages}
    return "time", [f"{name} {format.milliseconds(value)}" for name, value in stages.items()]


def _details(result: AskResult | InspectResult) -> list[Fact]:
    video = result.video
    clip = [printable(video.path), f"{video.width}x{video.height}", f"{video.duration_seconds:.2f} s"]
    if video.rotation_degrees:
        clip.append(f"turned by {video.rotation_degrees} degrees")
    if video.has_audio:
        clip.append("sound is ignored")
    settings = [f"{key} {value}" for key, value in result.policy.settings.items() if value is not None]
    return [
        ("file", clip),
        ("frames at", [", ".join(f"{time:.2f}" for time in video.pts_seconds) + " s"]),
        ("policy", [result.policy.name, *settings]),
    ]


def _more_memory(result: AskResult) -> Fact:
    memory = result.memory
    parts = [f"scales and minima {format.size(memory.metadata_bytes)}"]
    if memory.peak_bytes is not None:
        parts.append(f"peak {format.size(memory.peak_bytes)}")
    return "memory", [*parts, f"sealing {format.milliseconds(result.timing.seal_ms)} of the first token's time"]
