"""B12: a folder of pictures in natural order, with a rate that is given or assumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features
from small_videos import error_of, numbered, numbers

from wq_cli.config import Limits, Sampling
from wq_cli.errors import UsageError, WqError
from wq_cli.video import probe, read


def folder_of(path: Path, names: list[str]) -> Path:
    path.mkdir()
    for i, name in enumerate(names):
        Image.fromarray(numbered(i)).save(path / name)
    return path


def test_b12_folder_in_natural_order_with_an_assumed_rate(tmp_path: Path) -> None:
    folder = folder_of(
        tmp_path / "f", ["a1.png", "a2.png", "A3.PNG", "a9.jpg", "a10.png", "a100.bmp", "b1.webp", "c.tif"]
    )
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_text("no picture")
    (folder / "sub.png").mkdir()
    clip = read(folder, Sampling(frames=20), default_frames=8)
    assert numbers(clip.frames) == list(range(8))
    assert clip.pts_seconds.tolist() == list(range(8))
    assert clip.notices[0] == "a folder has no frame rate: 1 picture per second is assumed (`--fps` sets it)"
    assert clip.info.frame_count == 8 and clip.info.duration_seconds == 8


def test_b12_folder_with_a_rate(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "f", [f"{i}.png" for i in range(12)])
    clip = read(folder, Sampling(fps=4), default_frames=8)
    assert numbers(clip.frames) == list(range(12))
    assert clip.pts_seconds == pytest.approx(np.arange(12) / 4)
    assert clip.notices == ()
    half = read(folder, Sampling(fps=4, start=1, end=2), default_frames=8)
    assert numbers(half.frames) == [4, 5, 6, 7]
    assert probe(folder, sampling=Sampling(fps=4, start=2.9)).duration_seconds == 3
    with pytest.raises(UsageError, match=r"`--start 3` is not before the end of the video \(3.00 s\)"):
        probe(folder, sampling=Sampling(fps=4, start=3))


def test_folder_with_damaged_and_differing_pictures(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "f", [f"{i}.png" for i in range(6)])
    (folder / "0.png").write_bytes(b"junk")
    (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:100])
    Image.fromarray(numbered(4, 200, 100)).convert("L").save(folder / "4.png")
    clip = read(folder, Sampling(frames=6), default_frames=8)
    assert numbers(clip.frames) == [1, 2, 4, 5]
    assert clip.notices[-1] == "2 of 6 frames cannot be decoded and are left out (damage near 0.0 s)"


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "LA", "CMYK", "1", "I;16"])
def test_folder_with_every_kind_of_pixel(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    if mode == "I;16":
        image = Image.fromarray(np.full((8, 8), 200 * 257, np.uint16))
    elif mode == "P":
        image = Image.new("P", (8, 8), 1)
        image.putpalette([0, 0, 0, 200, 200, 200])
    else:
        image = Image.new("L", (8, 8), 200).convert(mode)
    image.save(folder / ("a.tif" if mode == "CMYK" else "a.png"))
    picture = read(folder, Sampling(frames=1), default_frames=8).frames[0]
    assert picture.shape == (8, 8, 3)
    if mode != "1":
        assert np.abs(picture.astype(int) - 200).max() <= 1


@pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")
def test_folder_of_what_phones_and_browsers_save(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "f", ["1.avif", "2.jfif", "3.webp", "4.JPEG"])
    assert numbers(read(folder, Sampling(frames=4), default_frames=8).frames) == [0, 1, 2, 3]


def test_folder_turned_by_exif(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned 90 degrees clockwise
    Image.fromarray(numbered(0, 96, 64)).save(folder / "a.png", exif=exif)
    picture = read(folder, Sampling(frames=1), default_frames=8).frames[0]
    assert picture.shape == (96, 64, 3)
    assert picture[3, 40].tolist() == [0, 255, 0]  # the left strip is on top


def test_folder_in_which_nothing_opens(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"junk")
    assert error_of(folder).message == f"no picture in the folder `{folder}` can be read"


def test_folder_limits(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "f", ["a.png", "b.png"])
    assert "--max-frames-walked" in (error_of(folder, limits=Limits(max_frames_walked=1)).hint or "")
    assert "--max-pixels" in (error_of(folder, limits=Limits(max_pixels=100)).hint or "")
    with pytest.raises(WqError):
        probe(folder, Limits(max_pixels=100))
