"""Decodes the chosen pictures and as little else as the codec allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import BinaryIO

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from wq_cli.config import Limits
from wq_cli.video.container import best_stream, decoder, open_container, size_check
from wq_cli.video.timeline import Timeline, picture_packets

# Pictures that a decoder may hold back to reorder: 16 in H.264 and HEVC, plus what its threads hold.
_MAX_DELAY = 32
# Passing over fewer packets than this costs less than a seek.
_WORTH_A_SEEK = 64
# How far the pictures behind a recovery point may need what is before it.
_KEYS_BACK = 3
# Decoders that can leave out pictures that no other refers to, and be told so packet by packet.
_SKIPS_UNREFERENCED = {"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"}


@dataclass(frozen=True)
class Run:
    """Packets [start, stop] decoded in one go, for the pictures of these ranks."""

    start: int
    stop: int
    ranks: tuple[int, ...]


def plan(timeline: Timeline, ranks: npt.NDArray[np.int64]) -> list[Run]:
    """The shortest stretches of packets, each from a key picture on, that hold the pictures.

    Args:
        ranks: Places in display order, [F], strictly increasing.
    """
    if not timeline.is_ordered:
        stop = min(int(ranks[-1]) + _MAX_DELAY, len(timeline.ranks) - 1)
        return [Run(int(timeline.keys[0]), stop, tuple(ranks.tolist()))]
    runs: list[Run] = []
    for rank in ranks.tolist():
        packet = int(timeline.packets[rank])
        key = int(np.searchsorted(timeline.keys, packet, side="right")) - 1
        # Pictures shown before the key picture they follow in the file refer to the one before it.
        while key > 0 and timeline.ranks[timeline.keys[key]] > rank:
            key -= 1
        start = int(timeline.keys[key])
        if runs and runs[-1].start <= start <= runs[-1].stop + 1:
            last = runs[-1]
            runs[-1] = Run(last.start, max(last.stop, packet), (*last.ranks, rank))
        else:
            runs.append(Run(start, packet, (rank,)))
    return runs


class Decoder:
    """Reads one stream of one file, forwards, run by run.

    Args:
        on_packet: Called before each packet that is read; what it raises ends the reading.
        threads: Of FFmpeg; 0 for as many as it thinks right.

    Attributes:
        is_careful: Whether each error is reported at the packet that has it; from the first one on, at the latest.
        damage: Ranks of pictures at which the decoder gave up or that it marked as broken.
        may_skip: Whether pictures that no other refers to may be left out. Not where a picture may be two fields, each
            in a packet of its own.
    """

    def __init__(
        self,
        file: BinaryIO,
        limits: Limits,
        name: str,
        timeline: Timeline,
        on_packet: Callable[[], None],
        is_careful: bool = False,
        threads: int = 0,
    ) -> None:
        self._file, self._limits, self._name, self._timeline = file, limits, name, timeline
        self.on_packet, self.is_careful, self._threads = on_packet, is_careful, threads
        self._can_seek = len(timeline.key_pts) > 0
        self.damage: set[int] = set()
        self.may_skip = False
        self._open()

    def for_a_thread(self, on_packet: Callable[[], None]) -> Decoder:
        """A careful decoder of the same stream, which starts no threads."""
        other = Decoder(self._file, self._limits, self._name, self._timeline, on_packet, is_careful=True, threads=1)
        other.may_skip = self.may_skip
        return other

    def close(self) -> None:
        self._container.close()

    def frames(self, ranks: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, VideoFrame]]:
        """Decodes pictures.

        Args:
            ranks: Places in display order, [F], strictly increasing.

        Yields:
            Index into `ranks`, rank found, picture. The rank found is the one asked for or, where that cannot be
            decoded, the last one before it; nothing comes where there is none either.
        """
        done = 0
        for run in plan(self._timeline, ranks):
            end = done + len(run.ranks)
            held: tuple[int, VideoFrame] | None = None
            for rank, frame in self._begun_early_enough(run):
                while held and done < end and ranks[done] < rank:
                    yield done, *held
                    done += 1
                held = (rank, frame)
            while held and done < end:
                yield done, *held
                done += 1
            done = end

    def _open(self) -> None:
        self._container: InputContainer = open_container(self._file, self._limits, self._name)
        self.stream: VideoStream = best_stream(self._container, self._limits, self._name)
        self._context = decoder(self.stream, self._limits, self.is_careful, self._threads)
        self._check_size = size_check(self._context, self._limits)
        self._packets = picture_packets(self._container, self.stream, self.on_packet)
        self._next = 0

    def _reopen(self) -> None:
        self._container.close()
        self._open()

    def _begun_early_enough(self, run: Run) -> Iterator[tuple[int, VideoFrame]]:
        """Pictures of a run, from a key or some earlier where the decoder gives nothing for the first ones.

        It does so behind the recovery points of intra refresh (no picture is whole, a strip of each is) until all
        strips are renewed.
        """
        known_damage = set(self.damage)
        found = self._decoded(run)
        first = next(found, None)
        at = int(np.searchsorted(self._timeline.keys, run.start))
        for earlier in self._timeline.keys[max(at - _KEYS_BACK, 0) : at][::-1].tolist():
            if first is not None and first[0] <= run.ranks[0]:
                break
            self._drain()
            self.damage &= known_damage
            found = self._decoded(replace(run, start=earlier))
            first = next(found, None)
        if first is not None:
            yield first
            yield from found

    def _decoded(self, run: Run) -> Iterator[tuple[int, VideoFrame]]:
        """Pictures of a run in display order, with their ranks; broken stretches are left out."""
        if not self.is_careful:
            try:
                yield from self._walk(run)
                return
            except av.FFmpegError:
                self.is_careful = True
                self._reopen()
        yield from self._walk(run)

    def _walk(self, run: Run) -> Iterator[tuple[int, VideoFrame]]:
        wanted = {int(self._timeline.packets[rank]) for rank in run.ranks}
        skips = self.may_skip and self._timeline.is_ordered and self._context.name in _SKIPS_UNREFERENCED
        self._shown = -1
        is_broken = False
        for number, packet in self._packets_from(run.start):
            if number > run.stop:
                break
            if is_broken and not packet.is_keyframe:
                continue
            is_broken = False
            if skips and self._context.is_open:
                self._context.skip_frame = "DEFAULT" if number in wanted else "NONREF"
            packet.pts = number  # comes back on the picture, in whatever order the decoder hands them out
            try:
                self._check_size(packet)
                frames = self._context.decode(packet)
            except av.FFmpegError:
                if not self.is_careful:
                    raise
                self.damage.add(max(int(self._timeline.ranks[number]), 0))
                is_broken = True
                frames = self._drain()
            yield from self._ranked(frames)
            if number == run.stop:
                break
        yield from self._ranked(self._drain())

    def _drain(self) -> list[VideoFrame]:
        """What the decoder still holds; it can start anew afterwards."""
        try:
            return self._context.decode(None)
        except av.FFmpegError:
            if not self.is_careful:
                raise
            return []
        finally:
            self._context.flush_buffers()

    def _ranked(self, frames: list[VideoFrame]) -> Iterator[tuple[int, VideoFrame]]:
        for frame in frames:
            rank = -1 if frame.pts is None else int(self._timeline.ranks[frame.pts])
            if not self._timeline.is_ordered:
                # An error leaves out an unknown number of pictures; the next key picture puts the count right.
                rank = rank if frame.key_frame and self.damage else self._shown + 1
            self._shown = rank
            if frame.is_corrupt:
                self.damage.add(max(rank, 0))
            elif 0 <= rank < len(self._timeline.starts):
                yield rank, frame

    def _packets_from(self, start: int) -> Iterator[tuple[int, Packet[VideoStream]]]:
        """Packets with their numbers in file order, from a key picture on."""
        if start < self._next or (self._can_seek and start - self._next > _WORTH_A_SEEK):
            self._go_to(start)
        try:
            for packet in self._packets:
                number = self._next
                self._next += 1
                if number >= start:
                    yield number, packet
        except av.FFmpegError:
            return  # the timeline has seen the same end

    def _go_to(self, start: int) -> None:
        """Puts the demuxer at a key picture or somewhere before it, and never trusts it to have got there."""
        if self._can_seek:
            self._can_seek = self._seek(start)
        if not self._can_seek:
            self._reopen()

    def _seek(self, start: int) -> bool:
        """Whether the demuxer could be put at a key picture no later than `start`."""
        keys, key_pts = self._timeline.keys, self._timeline.key_pts
        try:
            self._container.seek(int(key_pts[np.searchsorted(keys, start)]), stream=self.stream)
            packets = picture_packets(self._container, self.stream, self.on_packet)
            for packet in packets:
                if packet.is_keyframe and packet.pts is not None:
                    key = int(np.searchsorted(key_pts, packet.pts))
                    if key < len(keys) and key_pts[key] == packet.pts:
                        self._packets = chain([packet], packets)
                        self._next = int(keys[key])
                        return self._next <= start
        except av.FFmpegError:
            pass
        return False
