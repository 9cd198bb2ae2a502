"""Groups of options, gathered into frozen settings.

A command asks for a group by type, as in `sampling: Sampling`; `grouped` puts the group's options on its command line.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container
from typing import Any

from typer.core import TyperCommand, TyperGroup

from wq_cli.commands import options as opt
from wq_cli.commands.output import Output
from wq_cli.config import Generation, Limits, Quantization, Runtime, Sampling


def _sampling(
    frames: opt.Frames = None,
    fps: opt.Fps = None,
    sample: opt.Sample = None,
    start: opt.Start = None,
    end: opt.End = None,
) -> Sampling:
    return Sampling(sample=sample, frames=frames, fps=fps, start=start, end=end)


def _limits(
    max_frames: opt.MaxFrames = Limits.max_frames,
    max_visual_tokens: opt.MaxVisualTokens = None,
    max_pixels: opt.MaxPixels = Limits.max_pixels,
    max_frames_walked: opt.MaxFramesWalked = Limits.max_frames_walked,
    max_copied_bytes: opt.MaxCopiedBytes = Limits.max_copied_bytes,
    timeout: opt.Timeout = Limits.timeout_seconds,
) -> Limits:
    return Limits(
        max_frames_walked=max_frames_walked,
        max_pixels=max_pixels,
        max_frames=max_frames,
        max_visual_tokens=max_visual_tokens,
        max_copied_bytes=max_copied_bytes,
        timeout_seconds=timeout,
    )


def _runtime(
    profile: opt.Profile = None,
    model: opt.Model = None,
    device: opt.Device = Runtime.device,
    dtype: opt.Dtype = Runtime.dtype,
    weights: opt.Weights = Runtime.weights,
    backend: opt.Backend = Runtime.backend,
    offline: opt.Offline = False,
) -> Runtime:
    return Runtime(
        profile=profile, model=model, device=device, dtype=dtype, weights=weights, backend=backend, offline=offline
    )


def _quantization(
    window: opt.Window = Quantization.window,
    alpha: opt.Alpha = Quantization.alpha,
    score_norm: opt.ScoreNorm = Quantization.score_norm,
    score_text: opt.ScoreText = Quantization.score_text,
    scorer: opt.Scorer = Quantization.scorer,
    sensitivity: opt.Sensitivity = Quantization.sensitivity,
    bits: opt.Bits = None,
    kv_memory: opt.KvMemory = None,
    kv_split: opt.KvSplit = None,
    no_fixed_first_window: opt.NoFixedFirstWindow = False,
    no_reorder: opt.NoReorder = False,
    zero_point: opt.ZeroPoint = Quantization.zero_point,
    kv_dtype: opt.KvDtype = Quantization.kv_dtype,
    seed: opt.Seed = Quantization.seed,
) -> Quantization:
    return Quantization(
        window=window,
        alpha=alpha,
        score_norm=score_norm,
        score_text=score_text,
        scorer=scorer,
        sensitivity=sensitivity,
        bits=bits,
        kv_memory_bytes=kv_memory,
        kv_split=kv_split,
        fixed_first_window=not no_fixed_first_window,
        reorder=not no_reorder,
        zero_point=zero_point,
        kv_dtype=kv_dtype,
        seed=seed,
    )


def _generation(
    max_new_tokens: opt.MaxNewTokens = Generation.max_new_tokens,
    temperature: opt.Temperature = Generation.temperature,
    question_after_cache: opt.QuestionAfterCache = False,
    compile_layers: opt.CompileLayers = Generation.compile_layers,
    seed: opt.Seed = Generation.seed,
) -> Generation:
    return Generation(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        question_after_cache=question_after_cache,
        compile_layers=compile_layers,
        seed=seed,
    )


def _output(
    json: opt.Json = False,
    file: opt.File = None,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    no_progress: opt.NoProgress = False,
) -> Output:
    return Output(json=json, file=file, quiet=quiet, verbose=verbose, progress=not no_progress)


_GROUPS: dict[Any, Callable[..., Any]] = {
    Sampling: _sampling,
    Limits: _limits,
    Runtime: _runtime,
    Quantization: _quantization,
    Generation: _generation,
    Output: _output,
}


def grouped(command: Callable[..., None], replaced: Container[str] = ()) -> Callable[..., None]:
    """Replace each parameter that has the type of a group by the options of that group.

    Typer reads the resulting signature; an option that two groups share (`--seed`) appears once and reaches both.

    Args:
        command: With parameters of its own and of group types.
        replaced: Options of groups that the command has a reading of its own for; the groups keep their defaults.
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups = {name: _GROUPS[p.annotation] for name, p in own.items() if p.annotation in _GROUPS}
    offered = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}
    members = {name: {key: p for key, p in group.items() if key not in replaced} for name, group in offered.items()}
    flat: dict[str, inspect.Parameter] = {}
    for name, parameter in own.items():
        for member, option in members.get(name, {name: parameter}).items():
            made = flat.setdefault(member, option.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            if made.annotation != option.annotation:
                raise TypeError(f"{command.__name__}: two different options are called {member}")

    def run(**values: Any) -> None:
        built = {name: group(**{key: values[key] for key in members[name]}) for name, group in groups.items()}
        command(**{name: built[name] if name in built else values[name] for name in own})

    functools.update_wrapper(run, command)
    del run.__wrapped__  # type: ignore[attr-defined]  # or Typer would read the command's own signature
    run.__signature__ = inspect.Signature(list(flat.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in flat.items()}
    return run


class Command(TyperCommand):
    """A command whose `--help` stands among the output options and whose flags show no type."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _tidy(super().get_params(ctx), opt.OUTPUT)


class Group(TyperGroup):
    """A group of commands whose flags show no type."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _tidy(super().get_params(ctx), None)


class RunnableGroup(TyperGroup):
    """A group that does something of its own when none of its commands is named."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _tidy(super().get_params(ctx), opt.OUTPUT)


def _tidy(params: list[Any], help_panel: str | None) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param.name == "help":
            param.rich_help_panel = help_panel
    return params
