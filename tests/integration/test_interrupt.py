"""Ctrl-C at every stage of a real `wq ask`: code 130 at once, one line, no half file."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from fractions import Fraction
from itertools import chain, repeat
from pathlib import Path

import av
import numpy as np
import pytest
from small_videos import make
from tiny_models import llava_onevision

if sys.platform == "win32":
    pytest.skip("has no SIGINT for one process", allow_module_level=True)

# `wq` that tells on stderr which stage begins, and waits at the beginning of one that would be over too soon.
TELLING = """
import sys, time
from wq_cli import console
from wq_cli.app import main
waits_at = sys.argv.pop(1)
def stage(self, name, total=None):
    print("STAGE", name, file=sys.stderr, flush=True)
    if name == waits_at:
        time.sleep(10)
console.Listener.stage = stage
sys.exit(main(sys.argv[1:]))
"""
# More than any of the stages takes to notice, less than decoding the clip.
AT_ONCE_SECONDS = 3.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava_onevision(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour of 1920x1080 with one key picture: all of it has to be decoded for its last frame."""
    folder = tmp_path_factory.mktemp("long")

    def flat(i: int, width: int, height: int) -> np.ndarray:
        return np.full((height, width, 3), 90, np.uint8)

    short = make(folder / "short.mkv", n=60, codec="mpeg4", width=1920, height=1080, draw=flat, gop=60)
    target = folder / "long.mkv"
    with av.open(str(short)) as source, av.open(str(target), "w") as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        key, *others = [bytes(packet) for packet in source.demux(video=0) if packet.size]
        for number, data in enumerate(chain([key], *repeat(others, 600))):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, 10)
            packet.pts = packet.dts = number
            packet.is_keyframe = number == 0
            output.mux(packet)
    return target


@pytest.mark.parametrize("stage", ["load", "decode"])
def test_control_c_does_not_wait_for_the_decoder(stage: str, long: Path, model: Path, tmp_path: Path) -> None:
    interrupt(stage, "nowhere", long, model, tmp_path)


@pytest.mark.parametrize("stage", ["encode", "generate"])
def test_control_c_after_decoding(stage: str, model: Path, tmp_path: Path) -> None:
    clip = make(tmp_path / "a.mp4", n=8)
    interrupt(stage, stage, clip, model, tmp_path)


def interrupt(stage: str, waits_at: str, video: Path, model: Path, tmp_path: Path) -> None:
    """Ctrl-C shortly after a stage began, and what must be left."""
    before = set(tmp_path.iterdir())
    target = tmp_path / "answer.json"
    line = ["ask", str(video), "what happens?", "--model", str(model), "--frames", "4", "--json", "-o", str(target)]
    process = subprocess.Popen(
        [sys.executable, "-c", TELLING, waits_at, *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stderr
    while (said := process.stderr.readline()) != f"STAGE {stage}\n":
        assert said, "ended before the stage"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    started = time.perf_counter()
    out, err = process.communicate(timeout=60)
    assert time.perf_counter() - started < AT_ONCE_SECONDS
    assert process.returncode == 130
    assert err == "error: interrupted\n"
    assert json.loads(out)["exit_code"] == 130
    assert set(tmp_path.iterdir()) == before
