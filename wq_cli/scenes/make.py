"""Renders a clip of the demo world for people, with questions that fit it."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

from wq_cli import __version__
from wq_cli.errors import UsageError, VideoError
from wq_cli.scenes import COMMENT_PREFIX
from wq_cli.scenes.questions import FAMILIES, Question, questions
from wq_cli.scenes.suite import MADE_FOR_FRAMES
from wq_cli.scenes.world import CLIP_SEEDS, World, generate

FEWEST_FRAMES = 8
LONGEST_SECONDS = 3600
FRAMES_PER_BATCH = 8  # the fewer, the smaller the boxes that things sweep


def make(path: Path, *, seed: int, seconds: float = 12.0, fps: float = 24.0, size: int = 448) -> list[Question]:
    """Writes an H.264 clip whose container comment tells `wq` that it shows the demo world.

    Args:
        path: File to write; its ending names the container (mp4, mkv, mov).
        seed: Decides the clip, 0 or more. Training never draws the worlds of these seeds.
        seconds: Length, at least 4.
        fps: Frames per second, enough for 8 frames. What happens shows in 16 evenly spread frames, or in all of fewer.
        size: Side of the square frame in pixels, even and at least 64.

    Returns:
        One question per family that fits the clip, without multiple-choice endings.

    Raises:
        UsageError: An argument outside its range.
        VideoError: The file cannot be written.
    """
    if not 0 <= seed < len(CLIP_SEEDS):
        raise UsageError(f"`--seed {seed}` is not in 0 to {len(CLIP_SEEDS) - 1}")
    if not 4 <= seconds <= LONGEST_SECONDS:
        raise UsageError(f"`--seconds {seconds:g}` is not in 4 to {LONGEST_SECONDS}")
    if not 1 <= fps <= 120:
        raise UsageError(f"`--fps {fps:g}` is not in 1 to 120")
    if size % 2 or not 64 <= size <= 2160:
        raise UsageError(f"`--size {size}` is not an even number in 64 to 2160")
    frames = round(seconds * fps)
    if frames < FEWEST_FRAMES:
        raise UsageError(
            f"`--fps {fps:g}` gives {frames} frames in {seconds:g} seconds, and a clip needs {FEWEST_FRAMES}"
        )
    world = generate(CLIP_SEEDS[seed], frames=min(frames, MADE_FOR_FRAMES), seconds=seconds)
    write(path, world, fps=fps, size=size, comment=f"{COMMENT_PREFIX} {__version__} seed={seed}")
    return one_per_family(world)


def one_per_family(world: World) -> list[Question]:
    """The first question of each family that the world allows."""
    asked = [question for question in questions(world, world.seed, 60, wording=False) if "(A)" not in question.text]
    first = {question.family: question for question in reversed(asked)}
    return [first[family] for family in FAMILIES if family in first]


def write(path: Path, world: World, *, fps: float, size: int, comment: str) -> None:
    """Encodes a world; the file appears only when it is complete.

    Raises:
        VideoError: The folder is missing, the ending names no container, or the encoder fails.
    """
    import av

    scratch = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        with av.open(str(scratch), "w") as container:
            container.metadata["comment"] = comment
            _encode(container, world, Fraction(fps).limit_denominator(1001), size)
        os.replace(scratch, path)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise VideoError(
            f"cannot write `{path}`: {error}", "choose a folder that exists and an ending like `.mp4`"
        ) from error
    finally:
        scratch.unlink(missing_ok=True)


def _encode(container: object, world: World, rate: Fraction, size: int) -> None:
    import av
    import numpy as np

    from wq_cli.scenes.render import render, to_tensors
    from wq_cli.scenes.world import sample

    assert isinstance(container, av.container.OutputContainer)
    stream = container.add_stream("libx264", rate=rate, options={"crf": "14", "preset": "veryfast"})
    assert isinstance(stream, av.VideoStream)
    stream.width = stream.height = size
    stream.pix_fmt = "yuv420p"
    times = np.arange(round(world.seconds * rate)) / float(rate)
    for start in range(0, len(times), FRAMES_PER_BATCH):
        arrays = sample(world, times[start : start + FRAMES_PER_BATCH])
        pixels = render(*to_tensors(arrays), size, supersampling=1).mul_(255).round_().byte()
        for image in pixels.permute(0, 2, 3, 1).contiguous().numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
    container.mux(stream.encode())
