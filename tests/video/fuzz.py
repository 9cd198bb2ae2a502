"""Reads mutated video files in child processes: python tests/video/fuzz.py --inputs 10000 --seed 0

Input k of a seed is always the same bytes; `--first k --inputs 1` reads one again. Each ends in frames or in one clear
error. Anything else is a failure: another exception, a dead child, an input that takes too long or too much memory,
text on stderr, memory that grows. Exit code 1 on any; `--json` writes the figures. Needs Linux (/proc, glibc).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from wq_cli.config import Limits, Sampling
from wq_cli.errors import WqError
from wq_cli.video import read

SECONDS_PER_INPUT = 30.0
MEMORY_MIB = 1024.0  # peak of one input above what the child holds
GROWTH_MIB = 64.0  # of a child from its 100th input to its last
INPUTS_PER_CHILD = 1000
# Those that a person gets by default, and few pixels as a real profile asks for.
LIMITS, MAX_SIDE = Limits(), 384
SAMPLED = (
    Sampling(frames=4),
    Sampling(fps=2),
    Sampling(sample="scene", frames=4),
    Sampling(sample="keyframes", frames=4),
)
KINDS = (
    ("h264.mp4", {}),
    ("fragmented.mp4", {"mux": {"movflags": "frag_keyframe+empty_moov"}}),
    ("h264.ts", {}),
    ("h264.flv", {}),
    ("h264.avi", {}),
    ("ten_bit.mkv", {"pix": "yuv420p10le"}),
    ("hevc.mp4", {"codec": "libx265", "options": {"x265-params": "log-level=none:pools=none:frame-threads=1"}}),
    ("av1.mp4", {"codec": "libsvtav1", "options": {"preset": "12", "svtav1-params": "lp=1"}}),
    ("vp9.webm", {"codec": "libvpx-vp9"}),
    ("alpha.webm", {"codec": "libvpx-vp9", "pix": "yuva420p"}),
    ("vp8.webm", {"codec": "libvpx"}),
    ("mpeg4.mkv", {"codec": "mpeg4"}),
    ("mpeg2.ts", {"codec": "mpeg2video", "fps": 25}),
    ("mpeg1.mpg", {"codec": "mpeg1video", "fps": 25}),
    ("mjpeg.avi", {"codec": "mjpeg", "pix": "yuvj420p"}),
    ("prores.mov", {"codec": "prores_ks", "pix": "yuva444p10le"}),
    ("wmv.asf", {"codec": "wmv2"}),
    ("flv1.flv", {"codec": "flv"}),
    ("ffv1.mkv", {"codec": "ffv1", "pix": "bgr0"}),
    ("a.gif", {"codec": "gif", "pix": "rgb8"}),
    ("a.apng", {"codec": "apng", "pix": "rgba"}),
    ("a.webp", {"codec": "libwebp_anim", "pix": "bgra"}),
    ("a.png", {"codec": "png", "pix": "rgb24", "n": 1, "container": "image2"}),
    ("a.jpg", {"codec": "mjpeg", "pix": "yuvj420p", "n": 1, "container": "image2"}),
)


def make_originals(folder: Path) -> None:
    """One small valid file of each kind."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from small_videos import make

    for name, how in KINDS:
        make(folder / name, **({"n": 8, "gop": 4, "fps": Fraction(10)} | how))


def mutated(files: list[bytes], seed: int, number: int) -> bytes:
    """Input `number` of a seed: one file with up to 12 changes, mostly near the front, where headers are."""
    rng = random.Random(f"{seed}/{number}")
    data = bytearray(files[number % len(files)])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6, 12))):
        end = len(data) if rng.random() < 0.5 else min(len(data), 2048)
        at, length = rng.randrange(end), rng.choice((1, 2, 4, 8, 64))
        match rng.randrange(8):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + length] = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * length
            case 2:
                data[at : at + 4] = rng.randrange(2**32).to_bytes(4, rng.choice(("big", "little")))
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = rng.randbytes(length)
            case 5:
                other = files[rng.randrange(len(files))]
                data[at : at + length] = other[at : at + length]
            case 6:
                data[at:at] = data[at : at + length] * rng.randrange(1, 20)
            case _:
                del data[max(at, 16) :]
        if not data:
            return b"\x00"
    return bytes(data)


def status(key: str) -> float:
    """A line of /proc/self/status in MiB."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{key}:")[1].split()[0]) / 1024


def child(folder: Path, seed: int, first: int, stop: int) -> None:
    """Reads inputs [first, stop), one line of JSON each."""
    files = [(folder / name).read_bytes() for name, _ in KINDS]
    path = folder / "input"
    for number in range(first, stop):
        path.write_bytes(mutated(files, seed, number))
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before, started = status("VmRSS"), time.perf_counter()
        outcome = outcome_of(path, SAMPLED[number // len(KINDS) % len(SAMPLED)])
        seconds, peak = time.perf_counter() - started, status("VmHWM") - before
        ctypes.CDLL(None).malloc_trim(0)  # what is still held after this is in use
        facts = {
            "number": number,
            "outcome": outcome,
            "seconds": seconds,
            "peak_mib": peak,
            "rss_mib": status("VmRSS"),
        }
        print(json.dumps(facts), flush=True)


def outcome_of(path: Path, sampling: Sampling) -> str:
    """`frames` or `error`; any other text is a failure."""
    try:
        clip = read(path, sampling, default_frames=4, max_side=MAX_SIDE, limits=LIMITS)
        assert len(clip.frames) and np.isfinite(clip.pts_seconds).all() and np.isfinite(clip.span_seconds).all()
    except WqError as error:
        return "error" if "\n" not in error.message else f"several lines: {error.message}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "frames"


class Run:
    """One child after the other, and what came of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slowest, self.largest, self.growth = (0.0, -1), (0.0, -1), 0.0

    def watch(self, first: int, stop: int) -> int:
        """Runs one child until it ends or hangs; the number of the next input."""
        command = [
            sys.executable,
            __file__,
            "--child",
            str(self.folder),
            "--seed",
            str(self.seed),
            "--first",
            str(first),
        ]
        process = subprocess.Popen(
            [*command, "--inputs", str(stop - first)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout and process.stderr
        wait = selectors.DefaultSelector()
        wait.register(process.stdout, selectors.EVENT_READ)
        number, resident = first, []
        while wait.select(SECONDS_PER_INPUT + 30 * (number == first)):
            line = process.stdout.readline()
            if not line:
                break
            number = self._note(json.loads(line)) + 1
            resident.append(json.loads(line)["rss_mib"])
        else:
            process.send_signal(signal.SIGKILL)
        said = process.communicate()[1]
        if len(resident) > 200:
            self.growth = max(self.growth, np.mean(resident[-20:]) - np.mean(resident[90:110]))
        if number < stop:
            self.failures.append(f"input {number}: child ended with {process.returncode}: {said[-500:]}")
            number += 1
        elif said:
            self.failures.append(f"inputs {first} to {stop}: on stderr: {said[-500:]}")
        return number

    def _note(self, facts: dict[str, float | str]) -> int:
        number, outcome = int(facts["number"]), str(facts["outcome"])
        self.outcomes[outcome if outcome in ("frames", "error") else "failure"] += 1
        self.slowest = max(self.slowest, (float(facts["seconds"]), number))
        self.largest = max(self.largest, (float(facts["peak_mib"]), number))
        kind = KINDS[number % len(KINDS)][0]
        if outcome not in ("frames", "error"):
            self.failures.append(f"input {number} ({kind}): {outcome}")
        if float(facts["peak_mib"]) > MEMORY_MIB:
            self.failures.append(f"input {number} ({kind}): {facts['peak_mib']:.0f} MiB")
        return number


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--json", type=Path)
    options.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    stop = given.first + given.inputs
    if given.child:
        child(given.child, given.seed, given.first, stop)
        return 0
    number, started = given.first, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="wq-fuzz-") as folder:
        make_originals(Path(folder))
        run = Run(Path(folder), given.seed)
        while number < stop:
            number = run.watch(number, min(number + INPUTS_PER_CHILD, stop))
            print(f"{number}/{stop}: {dict(run.outcomes)}, {len(run.failures)} failures", flush=True)
    if run.growth > GROWTH_MIB:
        run.failures.append(f"a child grew by {run.growth:.0f} MiB")
    figures = {
        "inputs": given.inputs,
        "seed": given.seed,
        **run.outcomes,
        "failures": run.failures,
        "slowest_seconds": round(run.slowest[0], 2),
        "slowest_input": run.slowest[1],
        "largest_peak_mib": round(run.largest[0]),
        "largest_peak_input": run.largest[1],
        "growth_of_a_child_mib": round(run.growth, 1),
        "seconds": round(time.perf_counter() - started),
        "pyav": av.__version__,
        "ffmpeg": av.ffmpeg_version_info,
        "cpus": os.cpu_count(),
    }
    text = json.dumps(figures, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")
    return bool(run.failures)


if __name__ == "__main__":
    sys.exit(main())
