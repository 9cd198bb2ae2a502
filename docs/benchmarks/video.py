"""100 frames out of long 1920x1080 clips: wq beside decord and torchcodec.

    pip install decord torchcodec    # torchcodec also needs the shared libraries of an FFmpeg
    python docs/benchmarks/video.py  # makes the clips, measures, writes video.json and video.md

One minute is encoded and repeated by remuxing. Every measurement is a process of its own, the tools take turns; the
clock runs from opening the file to 100 RGB frames in memory, imports apart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
FPS, FRAMES, WIDTH, HEIGHT = 25, 100, 1920, 1080
KEY_EVERY = {"dense": FPS, "sparse": 4 * FPS}
# The short clip shows what length costs wq.
MINUTES = {10: ("wq",), 60: ("wq", "decord", "torchcodec", "torchcodec, all threads")}
TOOLS = MINUTES[60]


def encode_minute(path: Path, key_every: int) -> None:
    """One minute of a textured picture that moves under a still one."""
    import av

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
    ground = coarse.repeat(8, axis=0).repeat(8, axis=1)
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=FPS, options={"preset": "superfast", "sc_threshold": "0"})
        stream.width, stream.height, stream.pix_fmt, stream.codec_context.gop_size = WIDTH, HEIGHT, "yuv420p", key_every
        for i in range(60 * FPS):
            picture = np.roll(ground, 4 * i, axis=1)
            picture[400:700, 600:1300] = ground[400:700, 600:1300]
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))


def repeat(source: Path, target: Path, times: int) -> None:
    """Remuxes a clip some times over; the decoding times go on rising."""
    import av

    with av.open(str(source)) as clip, av.open(str(target), "w") as output:
        stream = output.add_stream_from_template(clip.streams.video[0])
        packets = [(bytes(p), p.pts, p.dts, p.is_keyframe, p.time_base) for p in clip.demux(video=0) if p.size]
        for turn in range(times):
            for data, pts, dts, is_key, time_base in packets:
                packet = av.Packet(data)
                shift = round(60 * turn / time_base)
                packet.pts, packet.dts, packet.time_base, packet.stream = pts + shift, dts + shift, time_base, stream
                packet.is_keyframe = is_key
                output.mux(packet)


def measure(tool: str, path: str) -> dict[str, float]:
    """Seconds and peak memory above what importing takes, in this process."""
    if tool == "wq":
        from wq_cli.config import Sampling
        from wq_cli.video import read

        def take(indices: list[int]) -> int:
            return len(read(path, Sampling(frames=FRAMES), default_frames=FRAMES).frames)
    elif tool == "decord":
        import decord

        def take(indices: list[int]) -> int:
            return len(decord.VideoReader(path).get_batch(indices).asnumpy())
    else:
        from torchcodec.decoders import VideoDecoder

        def take(indices: list[int]) -> int:
            threads = 0 if "all threads" in tool else 1
            decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=threads)
            return len(decoder.get_frames_at(indices).data.numpy())

    # Middles of equal stretches: what wq chooses.
    count = round(float(Path(path).stem.split("-")[1]) * 60 * FPS)
    indices = [int((2 * i + 1) * count / (2 * FRAMES)) for i in range(FRAMES)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, processor = time.perf_counter(), time.process_time()
    assert take(indices) == FRAMES
    return {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - processor,
        "peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("av", "decord", "torchcodec", "torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def run(repeats: int, folder: Path) -> dict[str, Any]:
    """Makes the clips that `folder` lacks and measures every tool on them."""
    rows = []
    loads = []
    for keys, key_every in KEY_EVERY.items():
        minute = folder / f"{keys}.mp4"
        if not minute.exists():
            encode_minute(minute, key_every)
        for minutes, tools in MINUTES.items():
            path = folder / f"{keys}-{minutes}.mp4"
            if not path.exists():
                repeat(minute, path, minutes)
            found: dict[str, list[dict[str, float]]] = {tool: [] for tool in tools}
            for _ in range(repeats):
                for tool in tools:
                    command = [sys.executable, __file__, "--measure", tool, str(path)]
                    loads.append(os.getloadavg()[0])
                    done = subprocess.run(command, capture_output=True, text=True)
                    if done.returncode:
                        print(f"{tool}: {done.stderr[-300:]}", file=sys.stderr)
                        continue
                    found[tool].append(json.loads(done.stdout))
            for tool, made in found.items():
                if made:
                    row = {
                        "tool": tool,
                        "keys": keys,
                        "minutes": minutes,
                        "seconds": round(statistics.median(row["seconds"] for row in made), 2),
                        "cpu_seconds": round(statistics.median(row["cpu_seconds"] for row in made), 2),
                        "peak_mib": round(max(row["peak_mib"] for row in made)),
                    }
                    rows.append(row)
                    print(row, file=sys.stderr, flush=True)
    return {
        "date": date.today().isoformat(),
        "repeats": repeats,
        "cpus": os.cpu_count(),
        "load_average": [round(min(loads), 1), round(max(loads), 1)],
        "versions": versions(),
        "rows": rows,
    }


HEAD = """\
# Reading video

```
python docs/benchmarks/video.py --repeats {repeats}
```

{frames} frames of 1920x1080 H.264 at {fps} per second, spread over the clip; key pictures every second (dense) or \
every four (sparse). In the dense clips each frame asked for happens to be a key picture, in the sparse ones it lies \
one to three seconds behind one. Seconds from opening the file to RGB in memory, medians of {repeats}: on the clock, \
and of processor time in parentheses. Peak memory above what imports take; the frames themselves are \
{frames_mib:.0f} MiB. {cpus} CPU cores, shared: load average {load_average[0]} to {load_average[1]}, which the clock \
shows and the processor time hardly. {date}; {versions}.

"""


def page(figures: dict[str, Any]) -> str:
    """The page video.md."""
    facts = {
        **figures,
        "frames": FRAMES,
        "fps": FPS,
        "frames_mib": FRAMES * WIDTH * HEIGHT * 3 / 2**20,
        "versions": ", ".join(f"{name} {value}" for name, value in figures["versions"].items()),
    }
    lines = ["| key pictures | clip | " + " | ".join(TOOLS) + " |", "|---|---|" + "---|" * len(TOOLS)]
    for keys in KEY_EVERY:
        for minutes in MINUTES:
            rows = {row["tool"]: row for row in figures["rows"] if (row["keys"], row["minutes"]) == (keys, minutes)}
            cells = [
                "{seconds} s ({cpu_seconds}), {peak_mib} MiB".format(**rows[tool]) if tool in rows else ""
                for tool in TOOLS
            ]
            lines.append(f"| {keys} | {minutes} min | " + " | ".join(cells) + " |")
    return HEAD.format(**facts) + "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--folder", type=Path, help="keeps the clips here, and takes those it finds")
    options.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(*given.measure)))
        return
    with tempfile.TemporaryDirectory(prefix="wq-video-") as folder:
        figures = run(given.repeats, given.folder or Path(folder))
    (HERE / "video.json").write_text(json.dumps(figures, indent=2) + "\n")
    (HERE / "video.md").write_text(page(figures))


if __name__ == "__main__":
    main()
