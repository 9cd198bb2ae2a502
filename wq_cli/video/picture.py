"""One decoded picture to RGB: upright, square pixels, no field lines, no alpha, no HDR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from av.filter import Graph
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace

from wq_cli.video.tonemap import HDR_TRANSFERS, hdr_to_sdr

if TYPE_CHECKING:
    from av.sidedata.sidedata import SideData

_BACKGROUND = 255  # transparent parts become white, as on a page
_STRIP_PIXELS = 1 << 20
_COLORSPACE_UNSPECIFIED = 2  # AVCOL_SPC_UNSPECIFIED
# Without full chroma, scaled pictures are off by up to 9 levels; accurate rounding on top gains nothing then and
# costs twenty times as much where nothing is scaled.
_SCALER = 0x4 | 0x2000  # SWS_BICUBIC | SWS_FULL_CHR_H_INT


@dataclass(frozen=True)
class Orientation:
    """How to put a picture upright: transpose first, then flip.

    A display matrix maps a pixel (x, y) to (a x + c y, b x + d y); any turn by quarters, mirrored or not, is one of
    these eight cases.
    """

    transposed: bool = False
    flips_rows: bool = False
    flips_columns: bool = False

    @property
    def rotation_degrees(self) -> int:
        """Clockwise turn; that of the turn before the mirroring where there is one."""
        if self.transposed:
            return 90 if self.flips_columns else 270
        return 180 if self.flips_rows else 0

    def apply(self, picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Turns [H, W, 3] upright."""
        if self.transposed:
            picture = picture.transpose(1, 0, 2)
        return picture[:: -1 if self.flips_rows else 1, :: -1 if self.flips_columns else 1]


def orientation(frame: VideoFrame) -> Orientation:
    """The orientation that the frame's display matrix asks for, to the nearest quarter turn.

    To be called once a stream: PyAV ties a frame whose side data was looked at into a reference cycle, and a hundred of
    those are held in memory until the garbage collector comes by.
    """
    try:
        matrix = cast("SideData | None", frame.side_data.get("DISPLAYMATRIX"))
    except ValueError:  # PyAV stumbles over kinds of side data that are newer than itself, such as EXIF
        quarters = round(-frame.rotation / 90) % 4
        return Orientation(quarters % 2 == 1, flips_rows=quarters in (2, 3), flips_columns=quarters in (1, 2))
    if matrix is None:
        return Orientation()
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Orientation(transposed=True, flips_rows=b < 0, flips_columns=c < 0)
    return Orientation(flips_rows=d < 0, flips_columns=a < 0)


def display_size(frame: VideoFrame, pixel_aspect: Fraction | None, turn: Orientation) -> tuple[int, int]:
    """Width and height as shown: square pixels, upright."""
    aspect = float(pixel_aspect) if pixel_aspect and 0.1 <= pixel_aspect <= 10 else 1.0
    width, height = max(1, round(frame.width * aspect)), frame.height
    return (height, width) if turn.transposed else (width, height)


def fit(width: int, height: int, max_side: int | None) -> tuple[int, int]:
    """The size shrunk, never grown, until its longer side is at most `max_side`."""
    scale = 1.0 if max_side is None else min(1.0, max_side / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def to_rgb(frame: VideoFrame, turn: Orientation, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Converts a picture.

    Args:
        frame: As it comes from the decoder.
        turn: How it is put upright.
        width, height: Size of the result, upright.

    Returns:
        [height, width, 3] uint8.
    """
    if frame.interlaced_frame:
        frame = _without_field_lines(frame)
    if turn.transposed:
        width, height = height, width
    if frame.color_trc in HDR_TRANSFERS:
        deep = _reformat(frame, width, height, "rgb48le")
        return turn.apply(_in_strips(lambda strip: hdr_to_sdr(strip, frame.color_trc), deep))
    if any(component.is_alpha for component in frame.format.components) or frame.format.name == "pal8":
        return turn.apply(flattened(_reformat(frame, width, height, "rgba")))
    return turn.apply(_reformat(frame, width, height, "rgb24"))


def _reformat(frame: VideoFrame, width: int, height: int, pixel_format: str) -> npt.NDArray[Any]:
    # Files that do not name their matrix follow the convention of players: BT.709 for HD, BT.601 below.
    colorspace: int = frame.colorspace
    if colorspace == _COLORSPACE_UNSPECIFIED:
        colorspace = Colorspace.ITU709 if frame.width >= 1280 or frame.height > 576 else Colorspace.ITU601
    converted = frame.reformat(
        width=width,
        height=height,
        format=pixel_format,
        src_colorspace=int(colorspace),
        dst_color_range=ColorRange.JPEG,
        interpolation=_SCALER,
    )
    return converted.to_ndarray()


def flattened(rgba: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """RGBA [H, W, 4] over the background, [H, W, 3]."""

    def over(strip: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        alpha = strip[..., 3:].astype(np.uint16)
        return ((strip[..., :3] * alpha + _BACKGROUND * (255 - alpha) + 127) // 255).astype(np.uint8)

    return _in_strips(over, rgba)


def _in_strips(convert: Callable[[Any], npt.NDArray[np.uint8]], picture: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Converts [H, W, C] to [H, W, 3] a few rows at a time: intermediate numbers take up to ten times the memory."""
    result = np.empty((*picture.shape[:2], 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // picture.shape[1])
    for top in range(0, len(picture), rows):
        result[top : top + rows] = convert(picture[top : top + rows])
    return result


def _without_field_lines(frame: VideoFrame) -> VideoFrame:
    """Interpolates one field from the other inside the picture, so that no neighbour has to be decoded for it."""
    graph = Graph()
    source = graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 1000))
    graph.link_nodes(source, graph.add("estdif", "mode=frame:deint=all"), graph.add("buffersink")).configure()
    graph.vpush(frame)
    graph.vpush(None)
    return graph.vpull()
