"""A23: memory grows with the frames asked for, not with the length of the file; nothing leaks over many reads."""

from __future__ import annotations

import errno
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_videos import Picture, error_of, make

resource = pytest.importorskip("resource", reason="needs a system that tells a process its peak memory")

# Peak of the process above what importing takes, in MiB.
MEASURE = """
import resource, sys
from wq_cli.config import Sampling
from wq_cli.video import read
def peak():
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
read(sys.argv[1], Sampling(frames=1), default_frames=8)
before = peak()
for _ in range(int(sys.argv[3])):
    read(sys.argv[1], Sampling(frames=int(sys.argv[2])), default_frames=8, max_side=int(sys.argv[4]) or None)
print(peak() - before)
"""


# Growth of resident memory over reads 101 to 300, in MiB.
RESIDENT = """
import ctypes, gc, resource, sys
from wq_cli.config import Sampling
from wq_cli.video import read
def resident():
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):  # else freed memory that the allocator keeps counts too
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20
for number in range(300):
    if number == 100:
        before = resident()
    read(sys.argv[1], Sampling(frames=4), default_frames=8)
print(resident() - before)
"""


def flat(i: int, width: int, height: int) -> Picture:
    return np.full((height, width, 3), i % 256, np.uint8)


def peak_mib(path: Path, frames: int, repeats: int = 1, max_side: int = 0) -> float:
    command = [sys.executable, "-c", MEASURE, str(path), str(frames), str(repeats), str(max_side)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 frames of 1920x1080: 1.4 GiB as RGB, a few hundred kB as a file."""
    folder = tmp_path_factory.mktemp("long")
    options = {"preset": "ultrafast"}
    return make(folder / "a.mp4", n=240, width=1920, height=1080, options=options, draw=flat, gop=60)


def test_a23_eight_frames_of_many(long: Path) -> None:
    assert peak_mib(long, 8) < 8 * 5.93 + 60


def test_a23_shrunk_frames_cost_what_they_hold(long: Path) -> None:
    assert peak_mib(long, 100, max_side=320) < 100 * 0.165 + 60


def test_many_reads_in_one_process(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=30, width=640, height=360)
    assert peak_mib(path, 4, repeats=60) < 4 * 0.66 + 25


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_three_hundred_reads_leave_nothing(tmp_path: Path) -> None:
    """After the first hundred, two hundred more add less than one of their pictures each would (130 MiB)."""
    path = make(tmp_path / "a.mkv", n=12, width=640, height=360, gop=4)
    done = subprocess.run([sys.executable, "-c", RESIDENT, str(path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 10


def test_what_does_not_fit_in_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> mmap.mmap:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    path = make(tmp_path / "a.mp4", n=2)
    monkeypatch.setattr(mmap, "mmap", full)
    assert "do not fit in memory" in error_of(path).message
