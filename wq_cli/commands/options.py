"""Every option that commands share, declared once: names, help, panel, parser (`groups` has the defaults)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from wq_cli import config, policies, profile
from wq_cli.commands.parsing import parse_bytes, parse_kv_split, parse_number, parse_seconds, parse_whole

INPUT, MODEL, QUANTIZATION, ANSWER, OUTPUT = "Input", "Model", "Quantization", "Answer", "Output"


def option(*names: str, panel: str, help: str, metavar: str = "N", choices: Any = None, **extra: Any) -> Any:
    """An option in a help panel; the names of a `Literal` are listed in its help."""
    if choices:
        help, metavar = f"{help}: {', '.join(get_args(choices))}.", "NAME"
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel, **extra)


def whole(*names: str, **how: Any) -> Any:
    """An option that takes a whole number."""
    return option(*names, parser=parse_whole, **how)


def number(*names: str, **how: Any) -> Any:
    """An option that takes a number."""
    return option(*names, parser=parse_number, **how)


def _use_profile(ctx: typer.Context, name: str | None) -> str | None:
    """Make the profile's settings the defaults of the options that were not given."""
    if ctx.resilient_parsing:  # shell completion must not fail on a profile that is not valid
        return name
    chosen = profile.load(name)
    ctx.default_map = {**(ctx.default_map or {}), **chosen.option_defaults()}
    return name or profile.default_name()


def complete_profile(incomplete: str) -> list[str]:
    return [name for name in profile.names() if name.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[str]:
    return [name for name in policies.names() if name.startswith(incomplete)]


Video = Annotated[
    str,
    typer.Argument(metavar="VIDEO", help="Video file, folder of pictures, web address, or `-`.", show_default=False),
]

Frames = Annotated[int | None, whole("--frames", "-n", panel=INPUT, help="Frames to take; the profile says how many.")]
Fps = Annotated[float | None, number("--fps", panel=INPUT, help="Frames to take per second, instead.")]
Sample = Annotated[
    config.Sample | None, option("--sample", panel=INPUT, help="How frames are chosen", choices=config.Sample)
]
Start = Annotated[
    float | None,
    option("--start", panel=INPUT, help="Where to begin: 90, 1:30, 0:01:30.5.", parser=parse_seconds, metavar="TIME"),
]
End = Annotated[float | None, option("--end", panel=INPUT, help="Where to stop.", parser=parse_seconds, metavar="TIME")]
MaxFrames = Annotated[int, whole("--max-frames", panel=INPUT, help="Most frames of a clip.")]
MaxVisualTokens = Annotated[
    int | None, whole("--max-visual-tokens", panel=INPUT, help="Take fewer frames where there would be more.")
]
MaxPixels = Annotated[int, whole("--max-pixels", panel=INPUT, help="Largest picture.")]
MaxFramesWalked = Annotated[int, whole("--max-frames-walked", panel=INPUT, help="Most pictures in a file.")]
MaxCopiedBytes = Annotated[
    int,
    option(
        "--max-copied-bytes",
        panel=INPUT,
        help="Most taken from a pipe or the web.",
        parser=parse_bytes,
        metavar="SIZE",
        show_default=f"{config.Limits.max_copied_bytes >> 30}GiB",
    ),
]
Timeout = Annotated[float, number("--timeout", panel=INPUT, help="Longest silence of a web server.", metavar="SECONDS")]

Profile = Annotated[
    str | None,
    option(
        "--profile",
        "-p",
        panel=MODEL,
        help="Model and its settings, see `wq profiles list`.",
        metavar="NAME",
        is_eager=True,
        callback=_use_profile,
        autocompletion=complete_profile,
    ),
]
Model = Annotated[
    str | None,
    option("--model", "-m", panel=MODEL, help="Hub repository or folder in place of the profile's.", metavar="REPO"),
]
Device = Annotated[
    str, option("--device", panel=MODEL, help="auto, cpu, cuda, cuda:1, multi (all GPUs), ...", metavar="NAME")
]
Dtype = Annotated[config.Dtype, option("--dtype", panel=MODEL, help="Weights and activations", choices=config.Dtype)]
Weights = Annotated[
    config.Weights, option("--weights", panel=MODEL, help="How the decoder's weights are kept", choices=config.Weights)
]
Offline = Annotated[bool, option("--offline", panel=MODEL, help="Download nothing (also HF_HUB_OFFLINE=1).")]
Backend = Annotated[
    config.Backend, option("--backend", panel=MODEL, help="What runs the packed cache", choices=config.Backend)
]

Policy = Annotated[
    str,
    option(
        "--policy",
        panel=QUANTIZATION,
        help=f"What chooses the bits: {', '.join(policies.names())}; options follow the name, as in kivi:bits=4.",
        metavar="NAME",
        callback=policies.check,
        autocompletion=complete_policy,
    ),
]
Window = Annotated[int, whole("--window", "-w", panel=QUANTIZATION, help="Visual tokens per window.")]
Alpha = Annotated[float, number("--alpha", panel=QUANTIZATION, help="Shape of the thresholds (eqs 10, 11).")]
ScoreNorm = Annotated[
    config.ScoreNorm, option("--score-norm", panel=QUANTIZATION, help="Scaling of the scores", choices=config.ScoreNorm)
]
ScoreText = Annotated[
    config.ScoreText, option("--score-text", panel=QUANTIZATION, help="Text that scores", choices=config.ScoreText)
]
Scorer = Annotated[
    config.Scorer, option("--scorer", panel=QUANTIZATION, help="Measure of similarity", choices=config.Scorer)
]
Sensitivity = Annotated[
    config.SensitivitySource,
    option(
        "--sensitivity", panel=QUANTIZATION, help="Where layer sensitivity is from", choices=config.SensitivitySource
    ),
]
Bits = Annotated[
    float | None, number("--bits", panel=QUANTIZATION, help="Budget in average bits; replaces the thresholds.")
]
KvMemory = Annotated[
    int | None,
    option(
        "--kv-memory",
        panel=QUANTIZATION,
        help="Budget for the whole cache: 500MiB, 2GB.",
        parser=parse_bytes,
        metavar="SIZE",
    ),
]
KvSplit = Annotated[
    Any,  # Typer knows no nested tuples; the parser makes them
    option(
        "--kv-split",
        panel=QUANTIZATION,
        help="Key/value bits of high, middle, low: 16/16,8/4,4/2.",
        parser=parse_kv_split,
        metavar="K/V,..",
    ),
]
NoFixedFirstWindow = Annotated[
    bool, option("--no-fixed-first-window", panel=QUANTIZATION, help="Quantize the first window too.")
]
NoReorder = Annotated[bool, option("--no-reorder", panel=QUANTIZATION, help="Store windows in the order of time.")]
ZeroPoint = Annotated[
    config.ZeroPoint, option("--zero-point", panel=QUANTIZATION, help="How minima are stored", choices=config.ZeroPoint)
]
KvDtype = Annotated[
    config.Dtype, option("--kv-dtype", panel=QUANTIZATION, help="What is not quantized", choices=config.Dtype)
]
Seed = Annotated[int, whole("--seed", panel=QUANTIZATION, help="For the random policy and for --temperature.")]

MaxNewTokens = Annotated[int, whole("--max-new-tokens", panel=ANSWER, help="Longest answer, in tokens.")]
Temperature = Annotated[float, number("--temperature", "-t", panel=ANSWER, help="0 always takes the likeliest token.")]
QuestionAfterCache = Annotated[
    bool, option("--question-after-cache", panel=ANSWER, help="Quantize first, then read the question.")
]
CompileLayers = Annotated[
    bool,
    option(
        "--compile/--no-compile",
        panel=ANSWER,
        help="Compile the decoder's layers: seconds at first, fewer kernels a token.",
    ),
]

AllWindows = Annotated[bool, option("--all-windows", panel=OUTPUT, help="One row per window, however many.")]
Json = Annotated[bool, option("--json", panel=OUTPUT, help="Print one JSON document and nothing else.")]
File = Annotated[
    Path | None, option("--output", "-o", panel=OUTPUT, help="Write the JSON document to a file.", metavar="FILE")
]
Quiet = Annotated[bool, option("--quiet", "-q", panel=OUTPUT, help="The result alone.")]
Verbose = Annotated[bool, option("--verbose", "-v", panel=OUTPUT, help="More detail, and tracebacks.")]
NoProgress = Annotated[bool, option("--no-progress", panel=OUTPUT, help="No progress display (also WQ_NO_PROGRESS=1).")]
