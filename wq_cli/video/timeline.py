"""When each picture is on display, worked out from the packets alone: nothing is decoded, no header is believed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wq_cli.errors import VideoError
from wq_cli.video.clip import Limits

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

_NONE = np.iinfo(np.int64).min
# Pictures of these are patches on the one before, whatever the key flags say.
_ONE_CHAIN = {"gif", "apng", "webp", "webp_anim"}
# FFmpeg's own threshold for a jump in broadcast streams (`-dts_delta_threshold`).
_JUMP_SECONDS = 10.0


@dataclass(frozen=True)
class Timeline:
    """The pictures of a stream in display order, and the packets that hold them in file order.

    Attributes:
        starts: When picture r comes on display, [N] float64 seconds, not decreasing, first 0.
        end_seconds: When the last one goes off.
        origin_seconds: Time of the first picture in the file's own count.
        packets: File order of picture r, [N] int64.
        ranks: Display order of packet k, [K] int64, -1 for a packet that shows nothing.
        keys: Packets at which decoding can begin, [keys] int64, increasing.
        key_pts: Their times in the stream's own ticks, [keys] int64, increasing, by which they are found again after
            a seek; empty when times do not tell them apart.
        is_ordered: False when the file does not say in which order its packets are shown: then the decoder's
            order is the only truth, and `packets` and `ranks` hold to within its delay.
        is_cut: The file ended in the middle of something.
    """

    starts: npt.NDArray[np.float64]
    end_seconds: float
    origin_seconds: float
    packets: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    key_pts: npt.NDArray[np.int64]
    is_ordered: bool
    is_cut: bool


def picture_packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Packets that hold data, in file order: the numbering that everything else refers to."""
    return (packet for packet in container.demux(stream) if packet.size)


def scan(container: InputContainer, stream: VideoStream, limits: Limits, name: str) -> Timeline:
    """Walks the packets from where the container stands, which has to be its beginning.

    Raises:
        VideoError: More packets than `limits` allow, or none at all.
    """
    import av

    pts, dts, duration = array("q"), array("q"), array("q")
    is_key, is_shown = bytearray(), bytearray()
    has_hidden = stream.codec_context.name in ("vp8", "libvpx")
    is_cut = False
    try:
        for packet in picture_packets(container, stream):
            if len(pts) >= limits.max_frames_walked:
                raise VideoError(
                    f"`{name}` holds more than {limits.max_frames_walked:,} frames",
                    "lift the limit with `--max-frames-walked`",
                )
            pts.append(_NONE if packet.pts is None else packet.pts)
            dts.append(_NONE if packet.dts is None else packet.dts)
            duration.append(packet.duration or 0)
            is_cut = packet.is_corrupt
            is_key.append(packet.is_keyframe)
            is_shown.append(not (packet.is_discard or (has_hidden and not memoryview(packet)[0] & 0x10)))
    except av.FFmpegError:
        is_cut = True
    if not pts:
        raise VideoError(f"`{name}` holds no picture", "the file is incomplete or damaged")
    return _build(
        stream,
        np.frombuffer(pts, np.int64),
        np.frombuffer(dts, np.int64),
        np.frombuffer(duration, np.int64),
        np.frombuffer(is_key, np.bool_).copy(),
        np.frombuffer(is_shown, np.bool_).copy(),
        is_cut,
    )


def _build(
    stream: VideoStream,
    pts: npt.NDArray[np.int64],
    dts: npt.NDArray[np.int64],
    duration: npt.NDArray[np.int64],
    is_key: npt.NDArray[np.bool_],
    is_shown: npt.NDArray[np.bool_],
    is_cut: bool,
) -> Timeline:
    context = stream.codec_context
    time_base = stream.time_base or Fraction(1, 90_000)
    frame_ticks = max(1, round(1 / (time_base * (stream.average_rate or stream.guessed_rate or 25))))
    if context.name in _ONE_CHAIN or not is_key.any():
        is_key = np.arange(len(pts)) == 0
    keys = np.flatnonzero(is_key)

    lengths = np.where(duration > 0, duration, frame_ticks)
    has_pts = bool((pts != _NONE).all())
    reorders = context.codec.reorder
    # FFmpeg invents times for containers without them (AVI, raw streams), rising in file order even where the
    # decoder will reorder: true times of reordered pictures never rise all along.
    rises = bool((np.diff(pts) > 0).all())
    is_ordered = has_pts and not (reorders and context.has_b_frames and rises and len(pts) > 1)
    is_seekable = is_ordered and bool((np.diff(pts[keys]) > 0).all())
    if has_pts:
        is_broadcast = stream.container.format.name == "mpegts"
        jump = int(_JUMP_SECONDS / time_base) if is_broadcast else None
        ticks = _joined(pts, dts, is_key, lengths, jump)
    else:
        ticks = np.cumsum(lengths) - lengths
    if not reorders:
        ticks = np.maximum.accumulate(ticks)

    # A picture before the first key picture, in file or in time, refers to something that is not there.
    is_shown[: keys[0]] = False
    is_shown &= ticks >= ticks[keys[0]]
    if not is_shown.any():
        is_shown[keys[0]] = True
    shown = np.flatnonzero(is_shown)
    order = shown[np.argsort(ticks[shown], kind="stable")]
    ranks = np.full(len(pts), -1, np.int64)
    ranks[order] = np.arange(len(order))
    starts = ticks[order] - ticks[order[0]]
    gap = int(starts[-1] - starts[-2]) if len(starts) > 1 else 0
    end = int(starts[-1]) + (int(duration[order[-1]]) or gap or frame_ticks)
    return Timeline(
        starts=starts * time_base.numerator / time_base.denominator,
        end_seconds=float(end * time_base),
        origin_seconds=float(int(ticks[order[0]]) * time_base),
        packets=order,
        ranks=ranks,
        keys=keys,
        key_pts=pts[keys] if is_seekable else pts[:0],
        is_ordered=is_ordered,
        is_cut=is_cut,
    )


def _joined(
    pts: npt.NDArray[np.int64],
    dts: npt.NDArray[np.int64],
    is_key: npt.NDArray[np.bool_],
    lengths: npt.NDArray[np.int64],
    jump: int | None,
) -> npt.NDArray[np.int64]:
    """Times that go on where a file restarts its clock, as files glued together do.

    A restart shows as decoding times that fall at a key picture and stay down, or as a leap forward of more than
    `jump` ticks.
    """
    is_join = np.zeros(len(pts), np.bool_)
    falls = (dts[1:-1] < dts[:-2]) & (dts[2:] <= dts[:-2]) & (dts[1:-1] != _NONE)
    is_join[1:-1] = is_key[1:-1] & falls
    if jump is not None and len(pts) > 1:
        steps = np.diff(pts)
        is_join[1:] |= is_key[1:] & (steps > max(jump, 100 * int(np.median(np.abs(steps)))))
    bounds = [0, *np.flatnonzero(is_join).tolist(), len(pts)]
    pts = pts.copy()
    for before, at, after in zip(bounds, bounds[1:], bounds[2:], strict=False):
        last = before + int(np.argmax(pts[before:at]))
        pts[at:after] += pts[last] + lengths[last] - pts[at:after].min()
    return pts
