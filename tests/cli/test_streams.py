"""What lands on which stream, in real processes: pipes, terminals, encodings, signals, broken pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import results_by_hand as by_hand

if sys.platform == "win32":
    pytest.skip("needs pseudo-terminals", allow_module_level=True)
import pty

FAKE = Path(__file__).parents[1] / "fake_pipeline.py"
ANSWER = "a [bold]dog[/bold] appears, then 一只 ✓ cat"


def run(mode: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, str(FAKE), mode, *arguments],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=60,
    )


def run_on_a_terminal(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit code, and what a terminal receives from stdout and stderr together."""
    master, terminal = pty.openpty()
    whole = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
    command = [sys.executable, str(FAKE), "answer", "ask", *arguments]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=whole)
    os.close(terminal)
    pieces = []
    while True:
        try:
            pieces.append(os.read(master, 65536))
        except OSError:  # the other end is closed
            break
    os.close(master)
    return process.wait(timeout=60), b"".join(pieces).decode("utf-8", "replace")


def test_piped_stdout_holds_the_answer_alone() -> None:
    done = run("answer", "ask", "clip.mp4", "what?")
    assert done.returncode == 0
    assert done.stdout.decode() == ANSWER + "\n"
    said = done.stderr.decode()
    assert "bits × layers" in said
    assert "loading" not in said, "progress belongs to terminals"
    assert "\x1b" not in said


def test_quiet_says_nothing_else() -> None:
    done = run("answer", "ask", "clip.mp4", "what?", "--quiet")
    assert (done.stdout.decode(), done.stderr) == (ANSWER + "\n", b"")


def test_json_is_one_document() -> None:
    done = run("answer", "ask", "clip.mp4", "what?", "--json")
    document = json.loads(done.stdout)
    assert document["schema_version"] == 1
    assert (document["command"], document["answer"]) == ("ask", ANSWER)
    assert len(document["windows"]) == 17
    assert document["windows"][0].keys() >= {"start_seconds", "end_seconds", "similarity", "relevance", "key_bits"}
    assert done.stderr == b""


def test_progress_is_gone_before_the_answer_on_a_terminal() -> None:
    code, seen = run_on_a_terminal("clip.mp4", "what?")
    assert code == 0
    assert "decoding frames" in seen
    table, answer = seen.index("similarity"), seen.index("a [bold]dog[/bold]")
    last_erased = seen.rindex("\x1b[2K")
    assert last_erased < table < answer, "the block is erased before the table, the table stands before the answer"
    assert ANSWER in seen, "the answer is in one piece"


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [(["--no-progress"], {}), ([], {"WQ_NO_PROGRESS": "1"}), ([], {"TERM": "dumb"}), (["--json", "-q"], {})],
)
def test_progress_can_be_switched_off(arguments: list[str], environment: dict[str, str]) -> None:
    _, seen = run_on_a_terminal("clip.mp4", "q", *arguments, **environment)
    assert "decoding frames" not in seen
    assert "\x1b[2K" not in seen


def test_no_colour_on_request() -> None:
    _, seen = run_on_a_terminal("clip.mp4", "q", NO_COLOR="1", WQ_NO_PROGRESS="1")
    assert not re.search(r"\x1b\[[0-9;]*(3[0-7]|38;)[0-9;]*m", seen), "colour codes"
    _, coloured = run_on_a_terminal("clip.mp4", "q", COLORTERM="truecolor")
    assert "\x1b[38;2;213;94;0m" in coloured


def test_control_characters_cannot_steer_the_terminal() -> None:
    _, seen = run_on_a_terminal("a\x1b[31mb\x07.mp4", "q", "--verbose", WQ_NO_PROGRESS="1")
    assert "a\\x1b[31mb\\x07.mp4" in seen


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8:strict"])
@pytest.mark.parametrize("command", [["ask", "v\udcff.mp4", "一只 q"], ["inspect", "v\udcff.mp4", "--prompt", "一只"]])
def test_narrow_encodings_never_crash(encoding: str, command: list[str]) -> None:
    done = run("answer", *command, "--verbose", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    text = (done.stdout + done.stderr).decode(encoding.partition(":")[0])
    assert "v\\xff.mp4" in text
    if not encoding.startswith("utf"):
        assert "━" not in text
        assert "4bx" in text or "4 4" in text, "plain letters in place of signs"
        assert "\\u2588" not in text, "no escaped block characters"


@pytest.mark.parametrize("arguments", [["ask", "clip.mp4", "q"], ["inspect", "c.mp4", "--prompt", "q", "--json"]])
def test_head_ends_quietly(arguments: list[str]) -> None:
    command = [sys.executable, str(FAKE), "answer", *arguments, "-q"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1


@pytest.mark.parametrize("line", [["ask", "clip.mp4", "q"], ["inspect", "c.mp4", "--prompt", "q"]])
@pytest.mark.parametrize("option", ["--json", "--quiet", "--verbose"])
def test_files_are_written_though_nobody_reads_the_streams(line: list[str], option: str, tmp_path: Path) -> None:
    target, picture = tmp_path / "out.json", tmp_path / "map.png"
    more = ["--png", str(picture)] if line[0] == "inspect" else []
    command = [sys.executable, str(FAKE), "answer", *line, option, "--output", str(target), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    document = json.loads(target.read_text())
    assert document["command"] == line[0] and document.get("answer", ANSWER) == ANSWER
    assert picture.exists() == bool(more)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("mode", ["answer", "video-error"])
def test_the_answer_comes_though_nothing_can_be_said_beside_it(mode: str) -> None:
    command = [sys.executable, str(FAKE), mode, "ask", "clip.mp4", "q", "--verbose"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=60)
    expected = (0, ANSWER + "\n") if mode == "answer" else (1, "")
    assert (done.returncode, done.stdout.decode()) == expected


@pytest.mark.parametrize("columns", ["1", "20", "60", "80"])
def test_narrow_terminals_lose_no_figure(columns: str) -> None:
    said = run("answer", "ask", "clip.mp4", "q", COLUMNS=columns).stderr.decode()
    for window in by_hand.ask_result().windows:
        assert f"{window.start_seconds:.1f}–{window.end_seconds:.1f} s" in said
        assert window.similarity is None or f"{window.similarity:.4f}" in said
    assert "…" not in said


def test_a_question_in_a_locale_without_its_letters() -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    question = "is there a pingüino 🐧?"
    done = run("answer", "ask", "clip.mp4", question, "--json", **ascii_only)
    assert json.loads(done.stdout)["prompt"] == question
    command = [sys.executable, str(FAKE), "answer", "ask", "clip.mp4", "-", "--json"]
    for environment in (ascii_only, {"PYTHONIOENCODING": "ascii"}, {}):
        whole = {**os.environ, **environment}
        done = subprocess.run(command, input=question.encode(), capture_output=True, env=whole, timeout=60)
        assert json.loads(done.stdout)["prompt"] == question
    done = subprocess.run(command, input=b"a \xff dog", capture_output=True, timeout=60)
    assert done.returncode == 2 and b"bytes that cannot be decoded" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_a_full_disk_is_one_line(option: str) -> None:
    command = [sys.executable, str(FAKE), "answer", "ask", "clip.mp4", "q", option]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (1, b"error: cannot write to stdout: no space left on device\n")


def test_closed_streams_are_no_failure() -> None:
    command = f"{sys.executable} {FAKE} answer ask clip.mp4 q <&- 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout.decode()) == (0, ANSWER + "\n")


def test_control_c_while_the_app_is_still_imported() -> None:
    code = (
        "import sys\nclass Stop:\n  def find_spec(self, name, *_):\n    if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\nfrom wq_cli.__main__ import main\nsys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("mode", ["interrupt", "interrupt-while-answering"])
def test_control_c_leaves_no_half_file(mode: str, tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    target.write_text("before")
    done = run(mode, "ask", "clip.mp4", "q", "--output", str(target), "--json")
    assert done.returncode == 130
    assert done.stderr.decode().splitlines()[-1] == "error: interrupted"
    assert json.loads(done.stdout)["exit_code"] == 130
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]
    assert target.read_text() == "before"


def test_inspect_prints_the_map_and_draws_it(tmp_path: Path) -> None:
    target = tmp_path / "map.png"
    done = run("answer", "inspect", "clip.mp4", "--prompt", "a [red]dog", "--prompt", "b", "--png", str(target))
    assert "a [red]dog" in done.stdout.decode()
    assert "sensitivity" in done.stdout.decode()
    assert target.read_bytes().startswith(b"\x89PNG")
