"""A16, A17, A19, A22: matrices and ranges, 10 bit, HDR, alpha and interlaced pictures against equations in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
from small_videos import Picture, make, number_of, numbered

from wq_cli.config import Sampling
from wq_cli.video import read
from wq_cli.video.picture import Orientation, to_rgb

Array = npt.NDArray[np.float64]
SIDE, BLOCK = 8, 16  # squares a side of the test chart, pixels a side of a square
# Luma weights of red and blue, and the code of the matrix in FFmpeg.
MATRICES = {"bt601": (0.299, 0.114, 6), "bt709": (0.2126, 0.0722, 1), "bt2020": (0.2627, 0.0593, 9)}
PQ, HLG = 16, 18
BT709_TO_BT2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])


def to_yuv(rgb: Array, matrix: str, is_full: bool, bits: int) -> Array:
    """R'G'B' in [0, 1] to integer codes, ITU-R BT.601, BT.709 and BT.2020."""
    kr, kb, _ = MATRICES[matrix]
    y = kr * rgb[..., 0] + (1 - kr - kb) * rgb[..., 1] + kb * rgb[..., 2]
    u, v = (rgb[..., 2] - y) / (2 - 2 * kb), (rgb[..., 0] - y) / (2 - 2 * kr)
    top, step = 2**bits - 1, 2 ** (bits - 8)
    if is_full:
        codes = [y * top, u * top + 128 * step, v * top + 128 * step]
    else:
        codes = [(219 * y + 16) * step, (224 * u + 128) * step, (224 * v + 128) * step]
    return np.clip(np.round(np.stack(codes, axis=-1)), 0, top)


def write_chart(path: Path, rgb: Array, matrix: str, *, is_full: bool, bits: int = 8, trc: int = 2, tag: int) -> Path:
    """One lossless picture: a chart of squares, [side, side, 3] R'G'B' in [0, 1]."""
    codes = to_yuv(rgb, matrix, is_full, bits).repeat(BLOCK, 0).repeat(BLOCK, 1)
    kind = np.uint8 if bits == 8 else np.uint16
    pix = "yuv444p" if bits == 8 else f"yuv444p{bits}le"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=10, options={"qp": "0"})
        stream.width = stream.height = codes.shape[0]
        stream.pix_fmt = pix
        context = stream.codec_context
        context.colorspace, context.color_range, context.color_trc = tag, 2 if is_full else 1, trc
        frame = av.VideoFrame(codes.shape[1], codes.shape[0], pix)
        for plane, values in zip(frame.planes, np.moveaxis(codes, -1, 0), strict=True):
            rows = np.zeros((plane.height, plane.line_size // np.dtype(kind).itemsize), kind)
            rows[:, : values.shape[1]] = values
            plane.update(rows)
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def squares(picture: Picture) -> Array:
    """Centres of the squares, [side, side, 3] levels."""
    block = picture.shape[0] // SIDE
    return picture[block // 2 :: block, block // 2 :: block].astype(np.float64)


def chart(seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(0.05, 0.95, (SIDE, SIDE, 3))


def first(path: Path, max_side: int | None = None) -> Picture:
    return read(path, Sampling(frames=1), default_frames=1, max_side=max_side).frames[0]


def test_every_pixel_format_that_can_be_converted() -> None:
    """Numbers, colours and shape come back, whatever the depth, the order of bytes and the planes."""
    drawn = numbered(693)
    seen = 0
    for name in sorted(av.video.format.names):
        try:
            frame = av.VideoFrame.from_ndarray(drawn, format="rgb24").reformat(format=name)
            frame.reformat(format="rgb24")
        except (OSError, ValueError):
            continue  # FFmpeg converts from it or to it only
        if name in ("bgr555be", "bgr565be", "rgb555be", "rgb565be"):
            continue  # FFmpeg's own conversion mixes up their bytes
        seen += 1
        picture = to_rgb(frame, Orientation(), 96, 64)
        assert picture.shape == (64, 96, 3) and number_of(picture) == 693, name
        if not name.startswith(("gray", "mono", "ya")):
            green, blue = picture[24, 5].astype(int), picture[4, 50].astype(int)
            assert green[1] - max(green[0], green[2]) > 100 and blue[2] - max(blue[0], blue[1]) > 100, name
    assert seen > 150


@pytest.mark.parametrize("bits", [8, 10])
@pytest.mark.parametrize("is_full", [False, True], ids=["limited", "full"])
@pytest.mark.parametrize("matrix", list(MATRICES))
def test_matrix_and_range_are_honoured(tmp_path: Path, matrix: str, is_full: bool, bits: int) -> None:
    rgb = chart()
    path = write_chart(tmp_path / "a.mkv", rgb, matrix, is_full=is_full, bits=bits, tag=MATRICES[matrix][2])
    assert np.abs(squares(first(path)) - rgb * 255).max() <= 4
    assert np.abs(squares(first(path, max_side=64)) - rgb * 255).max() <= 4


@pytest.mark.parametrize(("scale", "matrix"), [(1, "bt601"), (6, "bt709")], ids=["SD", "HD"])
def test_matrix_that_the_file_does_not_name(tmp_path: Path, scale: int, matrix: str) -> None:
    rgb = chart().repeat(scale, 0).repeat(scale, 1)
    path = write_chart(tmp_path / "a.mkv", rgb, matrix, is_full=False, tag=2)
    assert np.abs(squares(first(path)) - rgb[scale // 2 :: scale, scale // 2 :: scale] * 255).max() <= 4


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a17_ten_bit_looks_like_eight_bit(tmp_path: Path, codec: str) -> None:
    options = {"x265-params": "log-level=none:pools=none:frame-threads=1"} if codec == "libx265" else {}
    eight = make(tmp_path / "8.mkv", n=2, codec=codec, options=options)
    ten = make(tmp_path / "10.mkv", n=2, codec=codec, options=options, pix="yuv420p10le")
    difference = first(eight).astype(int) - first(ten).astype(int)
    assert np.abs(difference).mean() < 3


def pq_code(nits: Array) -> Array:
    """SMPTE ST 2084."""
    power = (nits / 10_000) ** (2610 / 16384)
    return ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375


def hlg_code(nits: Array) -> Array:
    """ITU-R BT.2100: the opto-optical curve undone for a screen of 1000 nits, then the camera curve."""
    shown = nits / 1000
    luminance = (shown @ np.array([0.2627, 0.6780, 0.0593]))[..., None]
    scene = shown * np.maximum(luminance, 1e-9) ** (1 / 1.2 - 1)
    high = 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
    return np.where(scene <= 1 / 12, np.sqrt(3 * np.maximum(scene, 0)), high)


@pytest.mark.parametrize(("trc", "code"), [(PQ, pq_code), (HLG, hlg_code)], ids=["PQ", "HLG"])
def test_a17_hdr_gives_back_the_sdr_picture(tmp_path: Path, trc: int, code: Callable[[Array], Array]) -> None:
    """An SDR picture put into HDR as BT.2408 says (white at 203 nits) comes back where it is below the knee."""
    rgb = 0.25 + chart() * 0.55
    nits = 203 * rgb**2.4 @ BT709_TO_BT2020.T
    path = write_chart(tmp_path / "a.mkv", code(nits), "bt2020", is_full=False, bits=10, trc=trc, tag=9)
    difference = np.abs(squares(first(path)) - rgb * 255)
    assert difference.max() <= 6
    assert difference.mean() <= 2


@pytest.mark.parametrize(("trc", "code"), [(PQ, pq_code), (HLG, hlg_code)], ids=["PQ", "HLG"])
def test_a17_hdr_highlights_stay_apart(tmp_path: Path, trc: int, code: Callable[[Array], Array]) -> None:
    nits = np.geomspace(0.1, 1000, SIDE * SIDE).reshape(SIDE, SIDE, 1).repeat(3, axis=2)
    path = write_chart(tmp_path / "a.mkv", code(nits), "bt2020", is_full=False, bits=10, trc=trc, tag=9)
    grey = squares(first(path)).reshape(-1, 3)
    assert np.ptp(grey, axis=1).max() <= 3  # no tint
    assert (np.diff(grey[:, 1]) >= -1).all() and grey[-1, 1] >= 250
    white = grey[np.argmin(np.abs(nits[..., 0].ravel() - 203)), 1]
    assert 215 <= white <= 245


def rgba(i: int) -> Picture:
    """Left third clear, middle third half clear, right third opaque; red throughout."""
    picture = np.zeros((48, 96, 4), np.uint8)
    picture[..., 0] = 200
    picture[:, 32:64, 3], picture[:, 64:, 3] = 128, 255
    return picture


@pytest.mark.parametrize(
    ("name", "codec", "pix", "tolerance"),
    [
        pytest.param("a.mov", "png", "rgba", 1, id="A19-png"),
        pytest.param("a.mov", "qtrle", "argb", 1, id="A19-qtrle"),
        pytest.param("a.mov", "prores_ks", "yuva444p10le", 6, id="A19-prores4444"),
        pytest.param("a.webm", "libvpx-vp9", "yuva420p", 8, id="A19-vp9"),
        pytest.param("a.nut", "ffv1", "yuva420p", 6, id="A19-ffv1"),
    ],
)
def test_transparent_parts_become_white(tmp_path: Path, name: str, codec: str, pix: str, tolerance: int) -> None:
    with av.open(str(tmp_path / name), "w") as output:
        stream = output.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 48, pix
        for i in range(3):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(rgba(i), format="rgba")))
        output.mux(stream.encode(None))
    for picture in read(tmp_path / name, Sampling(frames=3), default_frames=1).frames:
        clear, half, solid = (picture[24, x].astype(int) for x in (12, 48, 84))
        assert np.abs(clear - 255).max() <= tolerance
        assert np.abs(half - (227, 127, 127)).max() <= tolerance
        assert np.abs(solid - (200, 0, 0)).max() <= tolerance


def test_a16_gif_transparency(tmp_path: Path) -> None:
    from PIL import Image

    image = Image.new("P", (32, 32), 0)
    image.putpalette([0, 0, 0, 250, 0, 0])
    image.paste(1, (16, 0, 32, 32))
    image.save(tmp_path / "a.gif", transparency=0)
    picture = first(tmp_path / "a.gif")
    assert picture[16, 8].tolist() == [255, 255, 255]
    assert picture[16, 24].tolist() == [250, 0, 0]


def combed(i: int, width: int, height: int) -> Picture:
    """A bright bar that is 16 pixels further in the second field than in the first."""
    picture = np.full((height, width, 3), 40, np.uint8)
    picture[0::2, 20 + i : 50 + i] = 220
    picture[1::2, 36 + i : 66 + i] = 220
    return picture


def comb_energy(picture: Picture) -> float:
    """Mean step from row to row that is undone by the next row."""
    rows = picture.mean(axis=2)
    return float(np.minimum(np.abs(rows[1:-1] - rows[:-2]), np.abs(rows[1:-1] - rows[2:])).mean())


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        pytest.param("a.mp4", "libx264", {"flags": "+ildct+ilme", "x264-params": "tff=1", "qp": "10"}, id="A22-h264"),
        pytest.param("a.ts", "mpeg2video", {"flags": "+ildct+ilme", "qmin": "1", "qmax": "3"}, id="A22-mpeg2"),
    ],
)
def test_no_comb_lines(tmp_path: Path, name: str, codec: str, options: dict[str, str]) -> None:
    path = make(tmp_path / name, n=6, codec=codec, options=options, fps=25, draw=combed, height=96)
    clip = read(path, Sampling(frames=6), default_frames=1)
    assert comb_energy(combed(0, 96, 96)) > 30
    assert max(comb_energy(picture) for picture in clip.frames) < 4
    assert clip.frames.max() > 200  # the bar is still there


def test_progressive_pictures_are_left_alone(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=1, options={"qp": "5"}, pix="yuv444p")
    assert np.abs(first(path).astype(int) - numbered(0)).mean() < 3
