"""A13, A16, A25, A28, A29, A31, A32, B12: names, kinds of files, limits, and one clear line for what cannot be read."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, features
from small_videos import error_of, make, number_of, numbered, numbers

from wq_cli.config import Limits, Sampling
from wq_cli.errors import UsageError, VideoError
from wq_cli.video import probe, read, source
from wq_cli.video.container import decoder, open_container, size_check

FIVE = Sampling(frames=5)
EVERY_SECOND = [1, 3, 5, 7, 9]


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("ten") / "a.mp4", n=10)


def test_a13_audio_only(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(16_000))
    assert error_of(path).message == f"no video stream in `{path}`"


def test_a13_cover_art_is_no_video(tmp_path: Path) -> None:
    """An MP3 with a picture: ID3v2.3 tag with an APIC frame in front of the sound."""
    sound = tmp_path / "a.mp3"
    with av.open(str(sound), "w") as output:
        stream = output.add_stream("libmp3lame", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((2, 44100), np.int16), format="s16p", layout="stereo")
        frame.sample_rate = 44100
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    cover = io.BytesIO()
    Image.fromarray(numbered(1)).save(cover, "PNG")
    body = b"\x00image/png\x00\x03\x00" + cover.getvalue()
    frame_bytes = b"APIC" + len(body).to_bytes(4, "big") + b"\x00\x00" + body
    size = len(frame_bytes)
    synchsafe = bytes((size >> shift) & 0x7F for shift in (21, 14, 7, 0))
    sound.write_bytes(b"ID3\x03\x00\x00" + synchsafe + frame_bytes + sound.read_bytes())
    with av.open(str(sound)) as container:
        assert len(container.streams.video) == 1  # FFmpeg does take the cover for a stream
    assert error_of(sound).message == f"no video stream in `{sound}`"


def test_largest_of_several_video_streams(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as output:
        streams = [output.add_stream("mpeg4", rate=10) for _ in range(2)]
        for stream, (width, height) in zip(streams, ((48, 32), (96, 64)), strict=True):
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(10):
            for stream in streams:
                picture = numbered(i if stream.width == 96 else 0, stream.width, stream.height)
                output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        for stream in streams:
            output.mux(stream.encode(None))
    clip = read(path, FIVE, default_frames=8)
    assert clip.frames.shape[1:3] == (64, 96)
    assert numbers(clip.frames) == EVERY_SECOND
    assert clip.notices == ("the file holds 2 video streams: one of 96x64 is read",)


def test_a_broadcast_whose_stream_changes_its_number(tmp_path: Path) -> None:
    """What comes after is another stream; that it is left out is said."""
    pieces = [make(tmp_path / f"{pid}.ts", mux={"mpegts_start_pid": str(pid)}).read_bytes() for pid in (256, 512)]
    (tmp_path / "a.ts").write_bytes(b"".join(pieces))
    clip = read(tmp_path / "a.ts", FIVE, default_frames=8)
    assert numbers(clip.frames) == EVERY_SECOND
    assert clip.notices == ("the file holds 2 video streams: one of 96x64 is read",)


def test_sound_beside_the_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as output:
        video, audio = output.add_stream("mpeg4", rate=10), output.add_stream("aac", rate=8000)
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        for i in range(10):
            output.mux(video.encode(av.VideoFrame.from_ndarray(numbered(i), format="rgb24")))
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        output.mux(audio.encode(frame))
        for stream in (video, audio):
            output.mux(stream.encode(None))
    clip = read(path, FIVE, default_frames=8)
    assert clip.info.has_audio and numbers(clip.frames) == EVERY_SECOND


@pytest.mark.parametrize(
    "name",
    [
        "with space.mp4",
        'it\'s "quoted".mp4',
        "percent%d%03d.mp4",
        "what?#x=1&y.mp4",
        "日本語🎬.mp4",
        "-dash.mp4",
        "new\nline.mp4",
        "concat:a.mp4",
        "file:a.mp4",
        "http:a.mp4",
        "pipe:0",
        "[bold]a.mp4",
        "*.mp4",
        "{a,b}.mp4",
        "no suffix",
        "picture.png",
        "list.m3u8",
        b"\xff\xfe.mp4",
    ],
)
def test_a28_a31_strange_names(ten: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | bytes) -> None:
    monkeypatch.chdir(tmp_path)
    text = os.fsdecode(name)
    Path(text).write_bytes(ten.read_bytes())
    clip = read(text, FIVE, default_frames=8)
    assert numbers(clip.frames) == EVERY_SECOND
    assert clip.info.path.isprintable()
    clip.info.path.encode("utf-8")
    Path(text).unlink()
    assert error_of(text).message == f"there is no file `{clip.info.path}`"


def test_a28_png_whose_name_is_a_pattern(tmp_path: Path) -> None:
    for i in range(3):
        Image.fromarray(numbered(i)).save(tmp_path / f"a{i}.png")
    Image.fromarray(numbered(7)).save(tmp_path / "a%d.png")
    clip = read(tmp_path / "a%d.png", FIVE, default_frames=8)
    assert numbers(clip.frames) == [7]


@pytest.mark.parametrize("address", ["ftp://example.org/a.mp4", "file:///etc/passwd", "rtsp://example.org/a"])
def test_a29_other_protocols_are_names_of_files(address: str) -> None:
    assert error_of(address).message == f"there is no file `{address}`"


def test_a29_a_playlist_cannot_reach_other_files(ten: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.ts").write_bytes(ten.read_bytes())
    hls = tmp_path / "list.mp4"
    hls.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path}/secret.ts\n#EXT-X-ENDLIST\n")
    assert error_of(hls).message == f"`{hls}` is incomplete or not a video"
    concat = tmp_path / "concat.mp4"
    concat.write_text("ffconcat version 1.0\nfile secret.ts\n")
    assert error_of(concat).message == f"`{concat}` is incomplete or not a video"


def test_a31_content_counts_not_the_suffix(ten: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.mp4"
    text.write_text("not a video\n" * 200)
    assert error_of(text).message == f"`{text}` is incomplete or not a video"
    picture = tmp_path / "picture.mp4"
    Image.fromarray(numbered(5)).save(picture, "PNG")
    clip = read(picture, FIVE, default_frames=8)
    assert numbers(clip.frames) == [5] and clip.info.duration_seconds > 0


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "tiff", "ppm"])
def test_a31_single_pictures(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned 90 degrees clockwise
    has_exif = suffix in ("jpg", "png", "webp")
    Image.fromarray(numbered(5)).save(tmp_path / f"a.{suffix}", **({"exif": exif} if has_exif else {}))
    clip = read(tmp_path / f"a.{suffix}", FIVE, default_frames=8)
    picture = clip.frames[0]
    if has_exif:
        assert clip.info.rotation_degrees == 90
        picture = np.rot90(picture)
    assert picture.shape == (64, 96, 3) and number_of(picture) == 5


@pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")
def test_animated_avif(tmp_path: Path) -> None:
    pictures = [Image.fromarray(numbered(i)) for i in range(6)]
    pictures[0].save(tmp_path / "a.avif", save_all=True, append_images=pictures[1:], duration=100, quality=95)
    clip = read(tmp_path / "a.avif", Sampling(frames=6), default_frames=8)
    assert numbers(clip.frames) == list(range(6)) and clip.notices == ()


@pytest.mark.skipif(not features.check("webp"), reason="Pillow without WebP")
def test_animated_webp(tmp_path: Path) -> None:
    """Pictures of different lengths, half of each see-through."""
    path, lengths = tmp_path / "a.webp", [100, 300, 50, 250, 100, 200]
    pictures = [Image.fromarray(np.dstack([numbered(i), np.full((64, 96), 255, np.uint8)])) for i in range(6)]
    for picture in pictures:
        picture.paste((255, 0, 0, 0), (0, 0, 96, 30))
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=lengths, lossless=True)
    clip = read(path, Sampling(frames=6), default_frames=8)
    assert numbers(clip.frames) == list(range(6)) and clip.notices == ()
    assert clip.pts_seconds == pytest.approx(np.cumsum([0, *lengths[:-1]]) / 1000)
    assert clip.info.duration_seconds == pytest.approx(1)
    assert (clip.frames[:, :29] == 255).all(), "what is transparent is white"
    # Middles of two halves of a second: pictures 1 (0.1 to 0.4 s) and 4 (0.7 to 0.8 s).
    assert numbers(read(path, Sampling(frames=2), default_frames=8).frames) == [1, 4]
    small = read(path, Sampling(frames=2, start=0.4), default_frames=8, max_side=48)
    assert small.frames.shape == (2, 32, 48, 3)
    assert "holds more than 5 frames" in error_of(path, limits=Limits(max_frames_walked=5)).message
    assert "are larger than" in error_of(path, limits=Limits(max_pixels=100)).message

    whole = path.read_bytes()
    path.write_bytes(whole[:24] + b"\xff" * 6 + whole[30:])  # width and height
    assert error_of(path).message == f"`{path}` is larger than Pillow opens"
    for share in (0.02, 0.1, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * share)])
        try:
            cut = read(path, Sampling(frames=6), default_frames=8)
        except VideoError as error:
            assert "incomplete" in error.message or "can be decoded" in error.message
        else:
            assert numbers(cut.frames) == list(range(len(cut.frames))) and cut.notices


def test_a32_four_kinds_of_bad_input_have_four_messages(tmp_path: Path) -> None:
    empty, folder, broken = tmp_path / "empty.mp4", tmp_path / "folder", tmp_path / "broken.mp4"
    empty.touch()
    folder.mkdir()
    broken.write_bytes(bytes(5000))
    messages = {
        error_of(tmp_path / "missing.mp4").message.replace(str(tmp_path), ""),
        error_of(empty).message.replace(str(tmp_path), ""),
        error_of(folder).message.replace(str(tmp_path), ""),
        error_of(broken).message.replace(str(tmp_path), ""),
    }
    assert messages == {
        "there is no file `/missing.mp4`",
        "`/empty.mp4` is empty",
        "the folder `/folder` holds no pictures",
        "`/broken.mp4` is incomplete or not a video",
    }


def test_a32_no_permission(ten: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = tmp_path / "locked.mp4"
    locked.write_bytes(ten.read_bytes())
    locked.chmod(0)
    if os.access(locked, os.R_OK):  # root may read anything
        real_open = open

        def refuse(path: Any, *args: Any, **kwargs: Any) -> Any:
            if path == str(locked):
                raise PermissionError(13, "Permission denied")
            return real_open(path, *args, **kwargs)

        monkeypatch.setattr(source, "open", refuse, raising=False)
    assert error_of(locked).message == f"no permission to read `{locked}`"


def test_other_ways_in_which_a_name_cannot_be_opened(ten: Path, tmp_path: Path) -> None:
    assert error_of(ten / "below").message.endswith("cannot be opened: Not a directory")
    assert error_of(tmp_path / ("a" * 300)).message.endswith("cannot be opened: File name too long")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be opened" in error_of(loop).message


def test_standard_input(ten: Path) -> None:
    code = (
        "from wq_cli.video import probe, read; from wq_cli.config import Limits, Sampling;"
        "print(probe('-').frame_count, len(read('-', Sampling(frames=5), default_frames=8).frames))"
    )
    with ten.open("rb") as file:
        result = subprocess.run([sys.executable, "-c", code], stdin=file, capture_output=True, text=True, check=True)
    assert result.stdout == "10 5\n"


def test_empty_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert error_of("-").message == "`standard input` is empty"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_and_its_limit(ten: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError):
            pipe.write_bytes(ten.read_bytes())

    for limits, expected in ((Limits(), EVERY_SECOND), (Limits(max_copied_bytes=1000), None)):
        feeder = threading.Thread(target=feed)
        feeder.start()
        if expected:
            assert probe(pipe, limits).frame_count == 10  # a pipe gives its bytes once, and may be asked twice
            assert numbers(read(pipe, FIVE, default_frames=8, limits=limits).frames) == expected
        else:
            error = error_of(pipe, limits=limits)
            assert error.message == f"`{pipe}` goes on after 1,000 bytes"
            assert error.hint == "lift the limit with `--max-copied-bytes`"
        feeder.join()


def test_nothing_stays_behind(ten: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    open_before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(5):
        read(ten, FIVE, default_frames=8)
        with pytest.raises(UsageError):
            read(ten, Sampling(start=99), default_frames=8)
    if open_before:
        assert len(os.listdir("/proc/self/fd")) <= open_before
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("limits", "message", "flag"),
    [
        (Limits(max_frames_walked=9), "holds more than 9 frames", "--max-frames-walked"),
        (Limits(max_pixels=6143), "pictures of 96x64 in", "--max-pixels"),
        (Limits(max_frames=9), "10 frames are asked for, more than 9", "--max-frames"),
    ],
)
def test_a25_limits_name_the_flag_that_lifts_them(ten: Path, limits: Limits, message: str, flag: str) -> None:
    error = error_of(ten, limits=limits)
    assert message in error.message
    assert error.hint is not None and error.hint.endswith(f"lift the limit with `{flag}`")


def test_a25_limits_that_are_just_met(ten: Path) -> None:
    limits = Limits(max_frames_walked=10, max_pixels=6144, max_frames=5)
    assert numbers(read(ten, FIVE, default_frames=8, limits=limits).frames) == EVERY_SECOND


def test_a25_pictures_that_grow_midway(tmp_path: Path) -> None:
    joined = tmp_path / "a.ts"
    pieces = [make(tmp_path / f"{w}.ts", n=5, width=w, height=64) for w in (96, 960)]
    joined.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    assert "pictures of 960x64 in" in error_of(joined, limits=Limits(max_pixels=96 * 64)).message


def test_comment_tag(tmp_path: Path) -> None:
    for name in ("a.mp4", "a.mkv"):
        path = make(tmp_path / name, n=2, comment="made by a test")
        assert probe(path).comment == "made by a test"


def test_probe_agrees_with_read(ten: Path) -> None:
    info = probe(ten)
    assert info == read(ten, FIVE, default_frames=8).info
    assert (info.codec, info.frame_count, info.fps, info.has_audio) == ("h264", 10, 10.0, False)


def test_repr_shows_shapes_not_pixels(ten: Path) -> None:
    text = repr(read(ten, FIVE, default_frames=8))
    assert "[5, 64, 96, 3]" in text and len(text) < 300


def test_progress(ten: Path) -> None:
    calls: list[tuple[int, int]] = []
    read(ten, FIVE, default_frames=8, on_progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i, 5) for i in range(1, 6)]


def test_a25_alpha_planes_that_are_larger_than_the_picture(tmp_path: Path) -> None:
    """The alpha plane is a picture of its own, with a size of its own, and libvpx makes room for any."""
    small = make(tmp_path / "a.webm", n=1, codec="libvpx-vp9", pix="yuva420p")
    large = make(tmp_path / "b.webm", n=1, codec="libvpx-vp9", pix="yuva420p", width=2048, height=1024)
    with small.open("rb") as a, large.open("rb") as b:
        limits = Limits(max_pixels=96 * 64)
        with open_container(a, limits, "a") as colours, open_container(b, Limits(), "b") as planes:
            stream = colours.streams.video[0]
            check = size_check(decoder(stream, limits, is_careful=True), limits)
            packet, plane = (next(p for p in opened.demux(video=0) if p.size) for opened in (colours, planes))
            check(packet)
            packet.set_sidedata(*plane.iter_sidedata())
            with pytest.raises(av.FFmpegError):
                check(packet)


def test_what_is_raised_between_packets_ends_the_reading(ten: Path) -> None:
    left = [15]  # ten packets of the scan, then into the decoding

    def stop() -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(ten, Sampling(frames=10), default_frames=8, on_packet=stop)
