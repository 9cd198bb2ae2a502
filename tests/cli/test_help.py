"""`--help`, `--version`, examples and the generated reference."""

from __future__ import annotations

import importlib.util
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from wq_cli.app import app, main

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "triton", "av", "numpy", "torchvision", "PIL")
COMMANDS = [
    "", "ask", "inspect", "bench", "bench ablation", "eval", "doctor", "profiles", "profiles list", "profiles use",
    "scenes make",
]  # fmt: skip


@pytest.mark.parametrize("line", ["", "--help", "ask -h", "--version", "ask", "ask --wrong", "bench -h"])
def test_nothing_heavy_is_imported_for_help_version_and_usage_errors(line: str) -> None:
    code = (
        "import sys\nfrom wq_cli.app import main\n"
        f"try:\n    main({line.split()!r})\nfinally:\n    print('LOADED', [n for n in {HEAVY!r} if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "LOADED []" in run.stdout


def test_help_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "wq_cli", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time, so that other work on the machine does not count.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.6


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_the_terminal(
    command: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert "Examples" in shown or command.startswith("profiles ")
    # Nothing is cut off: Rich marks what it shortens.
    assert "…" not in shown


def test_h_is_short_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    main(["ask", "-h"])
    short = capsys.readouterr().out
    main(["ask", "--help"])
    assert capsys.readouterr().out == short


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from wq_cli import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"wq {__version__}\n"


def _epilogs() -> list[str]:
    def below(command: object) -> list[str]:
        lines = (getattr(command, "epilog", None) or "").splitlines()
        return lines + [line for child in getattr(command, "commands", {}).values() for line in below(child)]

    return [line.removeprefix("$ ") for line in below(typer.main.get_command(app)) if line.startswith("$ ")]


@pytest.mark.parametrize("line", _epilogs())
def test_every_example_in_the_help_is_a_valid_command_line(line: str) -> None:
    words = shlex.split(line.rpartition("| ")[2])
    assert words[0] == "wq"
    command, arguments, context = typer.main.get_command(app), words[1:], None
    while arguments and arguments[0] in getattr(command, "commands", {}):
        context = typer.Context(command, parent=context)
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context("wq", arguments, parent=context, resilient_parsing=True)
    parsed = command.make_parser(typer.Context(command, parent=context)).parse_args(list(arguments))
    assert not parsed[1], "words that no option or argument takes"


def test_reference_page_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location("make_cli_reference", ROOT / "docs" / "make_cli_reference.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    message = "run `python docs/make_cli_reference.py`"
    assert module.TARGET.read_text(encoding="utf-8") == module.reference(), message


def test_every_setting_is_reachable_from_ask() -> None:
    from dataclasses import fields

    from wq_cli.config import Generation, Quantization, Runtime, Sampling

    renamed = {"kv_memory_bytes": "kv_memory", "fixed_first_window": "no_fixed_first_window", "reorder": "no_reorder"}
    command = typer.main.get_command(app).commands["ask"]
    known = {param.name for param in command.params}
    for group in (Sampling, Quantization, Generation, Runtime):
        for field in fields(group):
            assert renamed.get(field.name, field.name) in known


def test_completion_names_profiles_and_policies() -> None:
    def complete(line: str) -> str:
        environment = {**os.environ, "_WQ_COMPLETE": "complete_bash", "COMP_WORDS": line}
        environment["COMP_CWORD"] = str(len(line.split()) - 1)
        code = "from wq_cli.app import main; main()"
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        return run.stdout

    assert complete("wq ask clip.mp4 q --profile llava-onevision-7").split() == ["llava-onevision-7b"]
    assert complete("wq ask clip.mp4 q --policy rt").split() == ["rtn8", "rtn4", "rtn2"]
