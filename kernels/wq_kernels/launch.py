"""Launch choices as pure functions of shapes and the card, so that they can be tested without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from wq_kernels.layout import RAW_BITS, Segment, codes_per_word

# Values that the PyTorch form works on at a time: few enough for a processor cache, enough to outweigh the calls.
PIECE_ELEMENTS = 2**20
# Warps of the attention kernel that fit on one multiprocessor at once: it takes all 255 registers of a thread.
WARPS_PER_MULTIPROCESSOR = 8
# One pass over the card leaves its slowest program alone at the end; a second one fills that gap.
WAVES = 2
# Fewer tokens than this cost less than another partial output to merge.
MIN_TOKENS_PER_SPLIT = 256
# Moving scores between layouts takes shared memory beside the tiles that wait there.
SCRATCH_BYTES_PER_QUERY_ROW = 2048


@dataclass(frozen=True)
class Card:
    """What the choices need to know of a GPU."""

    multiprocessors: int
    shared_bytes: int


@lru_cache
def card(device: torch.device) -> Card:
    """The card behind a device; a small stand-in for the CPU, where kernels are interpreted."""
    if device.type != "cuda":
        return Card(multiprocessors=2, shared_bytes=2**17)
    properties = torch.cuda.get_device_properties(device)
    # Missing in the type stub only.
    return Card(properties.multi_processor_count, properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]


def next_power_of_two(n: int) -> int:
    """Smallest power of two that is at least n, for n >= 1."""
    return 1 << (n - 1).bit_length()


def tokens_per_row(key_bits: int, value_bits: int) -> int:
    """Consecutive tokens that one row of a tile covers: a whole word of the side with the more codes in it."""
    return max(1 if bits == RAW_BITS else codes_per_word(bits) for bits in (key_bits, value_bits))


@dataclass(frozen=True)
class SegmentShape:
    """The part of a segment that launch choices depend on."""

    key_bits: int
    value_bits: int
    window: int
    windows: int

    @property
    def tokens_per_row(self) -> int:
        """See `tokens_per_row`."""
        return tokens_per_row(self.key_bits, self.value_bits)

    @property
    def rows(self) -> int:
        """Tile rows; the last row of a window may hold fewer tokens than the others."""
        return self.windows * -(-self.window // self.tokens_per_row)

    @property
    def row_bytes(self) -> int:
        """Bytes per channel of a row: words (or half values) and two pairs of half metadata."""
        return sum(self.tokens_per_row * bits // 8 + 4 for bits in (self.key_bits, self.value_bits))


def segment_shape(segment: Segment) -> SegmentShape:
    """Shape of a segment."""
    return SegmentShape(segment.key.bits, segment.value.bits, segment.key.window, segment.key.windows)


@dataclass(frozen=True)
class AttendTile:
    """What one program of decode attention works on at a time.

    Attributes:
        query_block: Query rows, a power of two, at least 8.
        channel_block: Channels that are unpacked together, a power of two; the fewer, the fewer registers.
        packed_rows: Rows of words (`tokens_per_row` tokens each) of a segment with a packed side.
        raw_rows: Tokens of a raw segment and of the raw run.
        warps: Warps of the program.
        stages: Depth of the software pipeline.
    """

    query_block: int
    channel_block: int
    packed_rows: int
    raw_rows: int
    warps: int
    stages: int


def choose_tile(query_rows: int, channels: int, segments: Sequence[SegmentShape], card: Card) -> AttendTile:
    """Tile for a number of query rows per KV head (G * Q) and a head size (D)."""
    query_block = min(32, max(8, next_power_of_two(query_rows)))
    # More query rows need more registers for their scores: narrower tiles, spread over more threads.
    packed_rows, warps = (32, 2) if query_block == 8 else (16, 4)
    channel_block = next((block for block in (64, 32) if channels % block == 0), 16)
    raw_rows = 64
    # A second stage keeps one more tile in shared memory.
    tile_bytes = channels * max([raw_rows * 4, *(packed_rows * segment.row_bytes for segment in segments)])
    stages = 2 if tile_bytes + SCRATCH_BYTES_PER_QUERY_ROW * query_block <= card.shared_bytes else 1
    return AttendTile(query_block, channel_block, packed_rows, raw_rows, warps, stages)


@dataclass(frozen=True)
class Stretch:
    """How the rows of one segment (or of the raw run) are shared out.

    Attributes:
        rows: Tile rows in all.
        tile_rows: Rows that a program takes at a time.
        rows_per_split: Rows that a program takes in all; a multiple of tile_rows.
        splits: Programs; 0 for no rows.
    """

    rows: int
    tile_rows: int
    rows_per_split: int
    splits: int


@dataclass(frozen=True)
class AttendPlan:
    """Launch of decode attention: a tile, one stretch per segment, and one for the raw run."""

    tile: AttendTile
    segments: tuple[Stretch, ...]
    raw: Stretch

    @property
    def splits(self) -> int:
        """Programs per KV head and block of query rows."""
        return sum(stretch.splits for stretch in (*self.segments, self.raw))


def plan_attend(
    query_rows: int, kv_heads: int, segments: Sequence[SegmentShape], raw_length: int, tile: AttendTile, card: Card
) -> AttendPlan:
    """Share tokens out over programs so that the card is full and programs are equally long.

    Args:
        query_rows: G * Q, rows that share a KV head.
        kv_heads: B * Hkv.
        segments: Shape of each.
        raw_length: Tokens of the raw run.
        tile: What a program works on at a time.
        card: The GPU.
    """
    programs = kv_heads * -(-query_rows // tile.query_block)
    splits = max(1, card.multiprocessors * (WARPS_PER_MULTIPROCESSOR // tile.warps) * WAVES // programs)
    tokens = raw_length + sum(segment.window * segment.windows for segment in segments)
    tokens_per_split = max(MIN_TOKENS_PER_SPLIT, tokens // splits)
    stretches = []
    for segment in segments:
        tile_rows = tile.raw_rows if segment.tokens_per_row == 1 else tile.packed_rows
        stretches.append(share_out(segment.rows, tile_rows, segment.tokens_per_row, tokens_per_split))
    return AttendPlan(tile, tuple(stretches), share_out(raw_length, tile.raw_rows, 1, tokens_per_split))


def share_out(rows: int, tile_rows: int, tokens_per_row: int, tokens_per_split: int) -> Stretch:
    """Equal shares of whole tiles, each of about `tokens_per_split` tokens."""
    if rows == 0:
        return Stretch(0, tile_rows, tile_rows, 0)
    tiles = -(-rows // tile_rows)
    splits = -(-tiles // max(1, round(tokens_per_split / (tile_rows * tokens_per_row))))
    tiles_per_split = -(-tiles // splits)
    return Stretch(rows, tile_rows, tiles_per_split * tile_rows, -(-tiles // tiles_per_split))


def pack_rows(words: int) -> int:
    """Tokens that a program of the pack kernel, one warp, takes at a time: two words a thread.

    Four-byte loads spread a plane's channels over many threads, so that few of them share the extremes of a channel.

    Args:
        words: Words per token.
    """
    return max(1, 64 // next_power_of_two(words))


def unpack_rows(words: int) -> int:
    """Tokens of a program of the unpack kernel: about 1,024 words."""
    return max(1, 1024 // next_power_of_two(words))
