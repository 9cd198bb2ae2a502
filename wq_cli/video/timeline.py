"""When each picture is on display, worked out from the packets alone: nothing is decoded, no header is believed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from wq_cli.config import Limits
from wq_cli.errors import VideoError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

_NONE = np.iinfo(np.int64).min
# Pictures of these are patches on the one before, whatever the key flags say: FFmpeg's parsers of H.261 and H.263
# call every picture a key.
_ONE_CHAIN = {"gif", "apng", "webp", "webp_anim", "h261", "h263"}
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


def picture_packets(
    container: InputContainer, stream: VideoStream, on_packet: Callable[[], None]
) -> Iterator[Packet[VideoStream]]:
    """Packets that hold data, in file order: the numbering that everything else refers to."""
    for packet in container.demux(stream):
        on_packet()
        if packet.size:
            yield packet


@dataclass
class _Packets:
    """What a walk over the packets finds, one entry each, in file order; `_NONE` for a time that is not known."""

    pts: npt.NDArray[np.int64]
    dts: npt.NDArray[np.int64]
    duration: npt.NDArray[np.int64]
    is_key: npt.NDArray[np.bool_]
    is_shown: npt.NDArray[np.bool_]
    is_cut: bool


def scan(
    container: InputContainer, stream: VideoStream, limits: Limits, name: str, on_packet: Callable[[], None]
) -> Timeline:
    """Walks the packets from where the container stands, which has to be its beginning.

    Raises:
        VideoError: More packets than `limits` allow, or none at all.
    """
    packets = _walk(container, stream, limits, name, on_packet)
    context = stream.codec_context
    time_base = stream.time_base or Fraction(1, 90_000)
    frame_ticks = max(1, round(1 / (time_base * (stream.average_rate or stream.guessed_rate or 25))))
    lengths = np.where(packets.duration > 0, packets.duration, frame_ticks)
    if context.name in _ONE_CHAIN or not packets.is_key.any():
        packets.is_key = np.arange(len(packets.pts)) == 0
    keys = np.flatnonzero(packets.is_key)

    has_pts = 2 * np.count_nonzero(packets.pts != _NONE) > len(packets.pts)
    if has_pts:
        packets.pts = filled(packets.pts, packets.dts, lengths)
        jump = int(_JUMP_SECONDS / time_base) if container.format.name == "mpegts" else None
        ticks = _joined(packets, lengths, jump)
    else:
        ticks = np.cumsum(lengths) - lengths
    if not context.codec.reorder:
        ticks = np.maximum.accumulate(ticks)
    # FFmpeg invents times for containers without them (AVI, raw streams), rising in file order even where the
    # decoder will reorder: true times of reordered pictures never rise all along.
    is_invented = context.codec.reorder and context.has_b_frames and bool((np.diff(packets.pts) > 0).all())
    is_ordered = bool(has_pts and not (is_invented and len(ticks) > 1))
    key_pts = packets.pts[keys]

    order = _display_order(ticks, packets.is_shown, int(keys[0]))
    ranks = np.full(len(ticks), -1, np.int64)
    ranks[order] = np.arange(len(order))
    starts = ticks[order] - ticks[order[0]]
    gap = int(starts[-1] - starts[-2]) if len(starts) > 1 else 0
    end = int(starts[-1]) + (int(packets.duration[order[-1]]) or gap or frame_ticks)
    return Timeline(
        starts=starts * time_base.numerator / time_base.denominator,
        end_seconds=float(end * time_base),
        origin_seconds=float(int(ticks[order[0]]) * time_base),
        packets=order,
        ranks=ranks,
        keys=keys,
        key_pts=key_pts if is_ordered and (np.diff(key_pts) > 0).all() else key_pts[:0],
        is_ordered=is_ordered,
        is_cut=packets.is_cut,
    )


def _walk(
    container: InputContainer, stream: VideoStream, limits: Limits, name: str, on_packet: Callable[[], None]
) -> _Packets:
    import av

    pts, dts, duration = array("q"), array("q"), array("q")
    is_key, is_shown = bytearray(), bytearray()
    has_hidden = stream.codec_context.name in ("vp8", "libvpx")
    is_cut = False
    try:
        for packet in picture_packets(container, stream, on_packet):
            if len(pts) >= limits.max_frames_walked:
                raise VideoError(
                    f"`{name}` holds more than {limits.max_frames_walked:,} frames",
                    "lift the limit with `--max-frames-walked`",
                )
            pts.append(_NONE if packet.pts is None else packet.pts)
            dts.append(_NONE if packet.dts is None else packet.dts)
            duration.append(packet.duration or 0)
            is_key.append(packet.is_keyframe)
            is_shown.append(not (packet.is_discard or (has_hidden and not memoryview(packet)[0] & 0x10)))
            is_cut = packet.is_corrupt
    except av.FFmpegError:
        is_cut = True
    if not pts:
        raise VideoError(f"`{name}` holds no picture", "the file is incomplete or damaged")
    return _Packets(
        pts=np.frombuffer(pts, np.int64),
        dts=np.frombuffer(dts, np.int64),
        duration=np.frombuffer(duration, np.int64),
        is_key=np.frombuffer(is_key, np.bool_),
        is_shown=np.frombuffer(is_shown, np.bool_),
        is_cut=is_cut,
    )


def _display_order(
    ticks: npt.NDArray[np.int64], is_shown: npt.NDArray[np.bool_], first_key: int
) -> npt.NDArray[np.int64]:
    """Packets that show a picture, in the order of their times.

    A picture before the first key picture, in file or in time, refers to something that is not there.
    """
    can_be_shown = (np.arange(len(ticks)) >= first_key) & (ticks >= ticks[first_key])
    shown = np.flatnonzero(is_shown & can_be_shown)
    if not len(shown):
        shown = np.array([first_key])
    return shown[np.argsort(ticks[shown], kind="stable")]


def filled(
    pts: npt.NDArray[np.int64], dts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Times with the missing ones put in: the decoding time where there is one, else the end of the packet before."""
    pts = pts.copy()
    for k in np.flatnonzero(pts == _NONE):
        if dts[k] != _NONE:
            pts[k] = dts[k]
        elif k:
            pts[k] = pts[k - 1] + lengths[k - 1]
        else:
            pts[k] = pts[pts != _NONE][0]
    return pts


def _joined(packets: _Packets, lengths: npt.NDArray[np.int64], jump: int | None) -> npt.NDArray[np.int64]:
    """Times that go on where a file restarts its clock, as files glued together do.

    A restart shows as decoding times that fall at a key picture and stay down, or as a leap forward of more than
    `jump` ticks.
    """
    pts, dts, is_key = packets.pts.copy(), packets.dts, packets.is_key
    is_join = np.zeros(len(pts), np.bool_)
    falls = (dts[1:-1] < dts[:-2]) & (dts[2:] <= dts[:-2]) & (dts[1:-1] != _NONE)
    is_join[1:-1] = is_key[1:-1] & falls
    if jump is not None and len(pts) > 1:
        steps = np.diff(pts)
        is_join[1:] |= is_key[1:] & (steps > max(jump, 100 * int(np.median(np.abs(steps)))))
    bounds = [0, *np.flatnonzero(is_join).tolist(), len(pts)]
    for before, at, after in zip(bounds, bounds[1:], bounds[2:], strict=False):
        last = before + int(np.argmax(pts[before:at]))
        pts[at:after] += pts[last] + lengths[last] - pts[at:after].min()
    return pts
