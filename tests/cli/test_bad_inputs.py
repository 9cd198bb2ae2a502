"""Every kind of bad input through the real command: code, at most three lines on stderr, one JSON document."""

from __future__ import annotations

import io
import json
import os
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_videos import make

from wq_cli.app import main


def text(path: Path) -> str:
    path.write_text("not a video")
    return str(path)


def empty(path: Path) -> str:
    path.touch()
    return str(path)


def half(path: Path) -> str:
    make(path, n=60)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    return str(path)


def noise(path: Path) -> str:
    """A valid container around pictures of random bytes."""
    make(path, n=5)
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 4
    size = int.from_bytes(data[start - 8 : start - 4], "big") - 8
    data[start : start + size] = np.random.default_rng(0).bytes(size)
    path.write_bytes(data)
    return str(path)


def sound(path: Path) -> str:
    with wave.open(str(path), "wb") as output:
        output.setparams((1, 2, 8000, 0, "NONE", ""))
        output.writeframes(bytes(16_000))
    return str(path)


def folder(path: Path) -> str:
    path.mkdir()
    return str(path)


def folder_of_damaged_pictures(path: Path) -> str:
    path.mkdir()
    (path / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return str(path)


def named(name: str | bytes) -> Callable[[Path], str]:
    return lambda path: os.fsdecode(name)


def good(path: Path) -> str:
    return str(make(path, n=10))


BAD: dict[str, tuple[Callable[[Path], str], list[str], str]] = {
    "missing": (named("no/such.mp4"), [], "there is no file `no/such.mp4`"),
    "undecodable name": (named(b"\xff.mp4"), [], "there is no file `\\xff.mp4`"),
    "name that steers terminals": (named("\x1b[31m\n.mp4"), [], "there is no file `\\x1b[31m\\n.mp4`"),
    "very long name": (named("x" * 5000), [], "cannot be opened"),
    "zero byte in the name": (named("a\0b"), [], "cannot be opened"),
    "other protocol": (named("ftp://example.org/a.mp4"), [], "there is no file"),
    "nobody serves": (named("http://127.0.0.1:9/a.mp4"), ["--timeout", "5"], "cannot be reached"),
    "empty file": (empty, [], "is empty"),
    "text": (text, [], "is incomplete or not a video"),
    "half an MP4": (half, [], "is incomplete or not a video"),
    "pictures of noise": (noise, [], "can be decoded"),
    "sound alone": (sound, [], "no video stream in"),
    "empty folder": (folder, [], "holds no pictures"),
    "folder of damaged pictures": (folder_of_damaged_pictures, [], "can be read"),
    "empty standard input": (named("-"), [], "`standard input` is empty"),
    "too many frames walked": (good, ["--max-frames-walked", "9"], "holds more than 9 frames"),
    "too many pixels": (good, ["--max-pixels", "100"], "are larger than 100 pixels"),
}
BAD_OPTIONS = {
    "--sample fps": "`--sample fps` needs a rate",
    "--sample scene --fps 2": "`--sample scene` takes a number of frames, not a rate",
    "--sample keyframe": "`keyframe` is not one of",
    "--max-pixels 0": "`--max-pixels 0` is not positive",
    "--timeout -1": "`--timeout -1.0` is not positive",
    "--max-copied-bytes lots": "`lots` is not a size",
    "--max-visual-tokens 0": "`--max-visual-tokens 0` is not positive",
}


def check(line: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.startswith("error: ") and shown.count("\n") <= 3
    assert main([*line, "--json"]) == code
    streams = capsys.readouterr()
    document = json.loads(streams.out)
    assert (document["kind"], document["command"], document["exit_code"]) == ("error", line[0], code)
    assert said in document["error"] and streams.err == shown


@pytest.mark.parametrize(
    "command", [["ask", "what happens?"], ["inspect", "--prompt", "a dog"]], ids=["ask", "inspect"]
)
@pytest.mark.parametrize("kind", list(BAD))
def test_bad_videos(
    kind: str,
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_input, options, said = BAD[kind]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    video = make_input(tmp_path / "input.mp4")
    check([command[0], video, *command[1:], *options], 1, said, capsys)


@pytest.mark.parametrize("options", list(BAD_OPTIONS))
def test_bad_options_of_the_input(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(["ask", "a.mp4", "what happens?", *options.split()], 2, BAD_OPTIONS[options], capsys)


def test_a_permission_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a.mp4", n=2)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("wq_cli.video.source.open", refuse, raising=False)
    check(["ask", str(path), "what happens?"], 1, "no permission to read", capsys)


def test_a_range_after_the_end_is_told_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("wq_cli.pipeline.load_model", load)
    path = make(tmp_path / "a.mp4", n=10)
    check(["ask", str(path), "what happens?", "--start", "7"], 2, "`--start 7` is not before the end", capsys)


def test_a_model_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "a.mp4", n=2)
    check(["ask", str(path), "q", "--model", "./nope"], 1, "`./nope` is not a model folder", capsys)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    check(["ask", str(path), "q", "--model", str(tmp_path / "broken")], 1, "cannot be loaded", capsys)
