"""An opened container and the one stream worth reading in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import BinaryIO, cast

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Disposition
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from wq_cli.config import Limits
from wq_cli.errors import VideoError

_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
# Frame threads of FFmpeg 8.1's VP9 decoder call functions that are not set, in damaged files after a flush.
_NO_FRAME_THREADS = {"vp9"}
_BLOCK_ADD_ID_BYTES = 8
# Whether several containers may read one open file at the same time: not on Windows.
CAN_SHARE_FILES = hasattr(os, "pread")
_NOT_VIDEO = Disposition.attached_pic | Disposition.timed_thumbnails


class _OwnPlace:
    """A place of its own in an open file, so that several containers can read it at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._number, self._at = file.fileno(), 0
        self._end = os.fstat(self._number).st_size

    def read(self, size: int, /) -> bytes:
        data = os.pread(self._number, size, min(self._at, self._end))
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        place = offset + (0, self._at, self._end)[whence]
        if place < 0:
            raise ValueError("a place before the beginning")
        self._at = place
        return place


class _Bytes:
    """What FFmpeg sees of a file."""

    def __init__(self, file: BinaryIO) -> None:
        place = _OwnPlace(file) if CAN_SHARE_FILES else file
        self.read, self.tell = place.read, place.tell
        self._seek = place.seek

    def seek(self, offset: int, whence: int) -> int:
        """As `io.IOBase.seek`; -1 for the impossible offsets of damaged files, where PyAV prints an exception."""
        try:
            return self._seek(offset, whence)
        except (OSError, ValueError, OverflowError):
            return -1


def open_container(file: BinaryIO, limits: Limits, name: str) -> InputContainer:
    """Opens the file by its content alone.

    FFmpeg gets no name, so that neither a suffix nor a `%d` in it means anything, and no protocol, so that a playlist
    cannot reach other files or the network.

    Raises:
        VideoError: The content is no container that FFmpeg knows.
    """
    file.seek(0)
    options = {"protocol_whitelist": "none"} | _pixel_option(limits)
    try:
        return av.open(_Bytes(file), "r", options=options, metadata_errors="replace", buffer_size=1 << 18)
    except (av.FFmpegError, ValueError):
        raise VideoError(f"`{name}` is incomplete or not a video", "copy or download it again") from None
    except OSError as error:
        raise VideoError(f"`{name}` cannot be read: {error.strerror or error}") from None


def video_streams(container: InputContainer) -> list[VideoStream]:
    """Streams of moving pictures: no cover art."""
    return [s for s in container.streams.video if not s.disposition & _NOT_VIDEO]


def best_stream(container: InputContainer, limits: Limits, name: str) -> VideoStream:
    """The largest video stream that can be decoded; cover art does not count.

    Raises:
        VideoError: There is none, or its pictures are larger than `limits` allow.
    """
    streams = video_streams(container)
    if not streams:
        raise VideoError(f"no video stream in `{name}`")
    decodable = [s for s in streams if s.codec_context is not None]
    if not decodable:
        raise VideoError(f"the video stream in `{name}` is in a format that this FFmpeg cannot decode")
    best = max(
        decodable,
        # An animated AVIF holds its first picture once more, as a stream of its own.
        key=lambda s: (s.width * s.height, s.frames != 1, bool(s.disposition & Disposition.default), -s.index),
    )
    check_pixels(best.width, best.height, limits, name)
    return best


def check_pixels(width: int, height: int, limits: Limits, name: str) -> None:
    """Raises VideoError for a picture that is larger than the limits allow."""
    if width * height > limits.max_pixels:
        raise VideoError(
            f"pictures of {width}x{height} in `{name}` are larger than {limits.max_pixels:,} pixels",
            "lift the limit with `--max-pixels`",
        )


def _pixel_option(limits: Limits) -> dict[str, str]:
    """FFmpeg's own cap, which counts the padding of its buffers too: it stops what is far beyond the limit."""
    return {"max_pixels": str(2 * limits.max_pixels + 2**20)}


def tag(metadata: Mapping[str, str], key: str) -> str | None:
    """A tag by its name; containers disagree on capitals."""
    return next((value for name, value in metadata.items() if name.lower() == key), None)


def decoder(stream: VideoStream, limits: Limits, is_careful: bool, threads: int = 0) -> VideoCodecContext:
    """A decoder for the stream, not opened yet.

    The fast one works on several pictures at once, makes up what is missing and reports an error late, losing good
    pictures with it. The careful one reports every error at the packet that has it.

    Args:
        threads: Of FFmpeg; 0 for as many as it thinks right.
    """
    context = stream.codec_context
    # FFmpeg's own decoders of VP8 and VP9 drop the alpha plane, which travels beside each packet.
    alpha = _ALPHA_DECODERS.get(context.name)
    if tag(stream.metadata, "alpha_mode") == "1" and alpha in av.codecs_available:
        context = cast(VideoCodecContext, av.CodecContext.create(alpha, "r"))
    context.options = _pixel_option(limits) | ({"err_detect": "explode"} if is_careful else {})
    context.thread_type = "SLICE" if is_careful or context.name in _NO_FRAME_THREADS else "AUTO"
    context.thread_count = threads
    return context


def size_check(context: VideoCodecContext, limits: Limits) -> Callable[[Packet[VideoStream]], None]:
    """A function that raises `av.FFmpegError` for a packet whose pictures pass the limit, before it is decoded.

    FFmpeg's decoders do this themselves. libvpx allocates whatever a packet says, for the colours and for the alpha
    plane beside them, so FFmpeg's own decoders go first and keep in step.
    """
    plain = next((name for name, alpha in _ALPHA_DECODERS.items() if alpha == context.name), None)
    if plain is None:
        return lambda packet: None
    colours, alpha = (cast(VideoCodecContext, av.CodecContext.create(plain, "r")) for _ in range(2))
    for checking in (colours, alpha):
        checking.options, checking.thread_type = _pixel_option(limits), "SLICE"

    def check(packet: Packet[VideoStream]) -> None:
        colours.decode(av.Packet(bytes(packet)))
        for side in packet.iter_sidedata():
            if side.data_type == "matroska_block_additional":
                alpha.decode(av.Packet(bytes(side)[_BLOCK_ADD_ID_BYTES:]))

    return check
