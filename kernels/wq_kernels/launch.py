"""Launch choices as pure functions of shapes and the card, so that they can be tested without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from wq_kernels.layout import RAW_BITS, Segment

# Values that the PyTorch form works on at a time: few enough for a processor cache, enough to outweigh the calls.
PIECE_ELEMENTS = 2**20
# Registers of a multiprocessor, all of them in use by as many one-warp programs as fit.
REGISTERS = 65536
# Parts of a multiprocessor, each with its own share of them.
SCHEDULERS = 4
WARP = 32
# Shared memory that the system takes with every program.
SYSTEM_SHARED_BYTES = 1024
# Fewer tokens than this cost less than another partial output to merge.
MIN_TOKENS_PER_SPLIT = 128
# Tokens that share one maximum of the softmax; more would not stay in registers.
MAX_TILE_TOKENS = 64
# Time per token of one side, that of 2 bits being 10: codes are bound by instructions, plain values by memory.
TOKEN_COST = {2: 10, 4: 14, 8: 24, RAW_BITS: 35}


@dataclass(frozen=True)
class Card:
    """What the choices need to know of a GPU.

    Attributes:
        multiprocessors: How many.
        shared_bytes: Most shared memory that a program may take.
        bulk_prefetch: Whether one instruction brings a run of bytes into L2.
    """

    multiprocessors: int
    shared_bytes: int
    bulk_prefetch: bool = False


@lru_cache
def card(device: torch.device) -> Card:
    """The card behind a device; a small stand-in for the CPU, where kernels are interpreted."""
    if device.type != "cuda":
        return Card(multiprocessors=2, shared_bytes=2**17)
    properties = torch.cuda.get_device_properties(device)
    shared_bytes = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]  # missing in the type stub
    return Card(properties.multi_processor_count, shared_bytes, properties.major >= 9)


def next_power_of_two(n: int) -> int:
    """Smallest power of two that is at least n, for n >= 1."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class SegmentShape:
    """The part of a segment that launch choices depend on."""

    key_bits: int
    value_bits: int
    window: int
    windows: int

    @property
    def is_raw(self) -> bool:
        """Whether a side holds plain values."""
        return RAW_BITS in (self.key_bits, self.value_bits)

    @property
    def tile_tokens(self) -> int:
        """Tokens of a tile, a multiple of 16: a window, or an equal part of one; the last 16 may reach past its end."""
        if self.is_raw:
            return 16
        if self.window % 16 == 0:
            # What `fits_registers`: the words of more tokens would not.
            return 32 if self.window % 32 == 0 and max(self.key_bits, self.value_bits) <= 4 else 16
        sixteens = -(-self.window // 16)
        parts = -(-sixteens * 16 // MAX_TILE_TOKENS)
        return 16 * -(-sixteens // parts)

    @property
    def tiles(self) -> int:
        """Tiles of all windows."""
        return self.windows * -(-self.window // self.tile_tokens)

    @property
    def tile_cost(self) -> int:
        """Time of a tile in the units of TOKEN_COST."""
        return self.tile_tokens * (TOKEN_COST[self.key_bits] + TOKEN_COST[self.value_bits]) // 2

    @property
    def tile_bytes(self) -> int:
        """Bytes per channel of a tile's keys and values."""
        return self.tile_tokens * (self.key_bits + self.value_bits) // 8


def segment_shape(segment: Segment) -> SegmentShape:
    """Shape of a segment."""
    return SegmentShape(segment.key.bits, segment.value.bits, segment.key.window, segment.key.windows)


def fits_registers(shape: SegmentShape, channels: int, query_block: int) -> bool:
    """Whether a segment can be read lane by lane, each with its words, scales and sums in registers."""
    return query_block == 8 and channels in (64, 128) and not shape.is_raw and shape.window % shape.tile_tokens == 0


@dataclass(frozen=True)
class AttendTile:
    """What one program of decode attention works on at a time.

    Attributes:
        query_block: Query rows: 8 or 16.
        raw_tokens: Tokens of the raw run, a multiple of 16.
        stages: Depth of the software pipeline over packed tiles that are not read lane by lane; plain ones have two.
        registers: Most that a thread may take.
        shared_bytes: Shared memory that the deepest pipeline takes, about.
    """

    query_block: int
    raw_tokens: int
    stages: int
    registers: int
    shared_bytes: int

    def programs_at_once(self, card: Card) -> int:
        """One-warp programs that run on a card at once."""
        per_program = self.shared_bytes + SYSTEM_SHARED_BYTES
        by_memory = (card.shared_bytes + SYSTEM_SHARED_BYTES) // per_program
        by_registers = SCHEDULERS * (REGISTERS // SCHEDULERS // (WARP * self.registers))
        return card.multiprocessors * max(1, min(by_registers, by_memory))


def choose_tile(query_rows: int, channels: int, segments: Sequence[SegmentShape], card: Card) -> AttendTile:
    """Tile for a number of query rows per KV head (G * Q) and a head size (D)."""
    raw_tokens, query_block = 16, 8 if query_rows <= 8 else 16
    in_registers = [s for s in segments if fits_registers(s, channels, query_block)]
    raw_bytes = channels * max([raw_tokens * 4, *(s.tile_bytes for s in segments if s.is_raw)])
    packed_bytes = channels * max([0, *(s.tile_bytes for s in segments if not s.is_raw and s not in in_registers)])
    # A third stage keeps a second tile in shared memory.
    stages = 3 if 2 * packed_bytes <= card.shared_bytes // 2 else 2
    # Beside the tiles: minima and sums of 16 windows, and what moves between layouts.
    shared_bytes = max(raw_bytes, (stages - 1) * packed_bytes, 40 * channels) + 2048
    registers = 255 if in_registers else 168 if query_block == 8 else 248
    return AttendTile(query_block, raw_tokens, stages, registers, shared_bytes)


@dataclass(frozen=True)
class Stretch:
    """Where one segment's tiles (or the raw run's steps of tokens) lie in the line of all work.

    Attributes:
        units: Tiles of a segment; steps of the raw run.
        cost: Time of a unit.
        start: Time of all that lies before.
        slots: Program i writes its partial output of this stretch to place i + slots.
        first_tile: Tiles of the segments before.
    """

    units: int
    cost: int
    start: int
    slots: int
    first_tile: int


@dataclass(frozen=True)
class AttendPlan:
    """Launch of decode attention: all work in one line, cut into programs of equal time.

    A unit belongs to the program in whose time it starts, so that a program may end one segment and begin the next.

    Attributes:
        budget: Time of a program.
        programs: Per KV head and block of query rows.
        segments, raw: The stretches.
        partials: Partial outputs per query row.
        tiles: Tiles of all segments.
    """

    budget: int
    programs: int
    segments: tuple[Stretch, ...]
    raw: Stretch
    partials: int
    tiles: int


@lru_cache(maxsize=512)
def plan_attend(
    query_rows: int, kv_heads: int, segments: tuple[SegmentShape, ...], raw_length: int, tile: AttendTile, card: Card
) -> AttendPlan:
    """Cut the work so that all programs run at once and take equally long.

    Args:
        query_rows: G * Q, rows that share a KV head.
        kv_heads: B * Hkv.
        segments: Shape of each.
        raw_length: Tokens of the raw run.
        tile: What a program works on at a time.
        card: The GPU.
    """
    # One-warp programs beyond those that run at once would wait for a whole round.
    rounds = max(1, tile.programs_at_once(card) // (kv_heads * -(-query_rows // tile.query_block)))
    work = [(segment.tile_cost, segment.tiles) for segment in segments]
    work.append((TOKEN_COST[RAW_BITS] * tile.raw_tokens, -(-raw_length // tile.raw_tokens)))
    total = sum(cost * units for cost, units in work)
    budget = max(-(-total // rounds), MIN_TOKENS_PER_SPLIT * TOKEN_COST[2], *(cost for cost, _ in work))
    stretches, start, slots, last, tiles = [], 0, 0, -1, 0
    for cost, units in work:
        if units:
            # A program that ends one stretch and begins the next has a partial output of each.
            slots += start // budget == last
            last = (start + (units - 1) * cost) // budget
        stretches.append(Stretch(units, cost, start, slots, tiles))
        start += cost * units
        tiles += units
    *packed, raw = stretches
    return AttendPlan(budget, last + 1, tuple(packed), raw, last + 1 + slots, raw.first_tile)


def pack_rows(channels: int) -> int:
    """Tokens that a program of the pack kernel, one warp, takes at a time: 16 values a thread."""
    return max(1, 512 // next_power_of_two(channels))


def unpack_rows(words: int) -> int:
    """Tokens of a program of the unpack kernel: about 1,024 words."""
    return max(1, 1024 // next_power_of_two(words))


def fit_warps(window: int) -> int:
    """Warps of a program of the fit kernel, which holds 16 channels of a window: 32 values a thread, within limits."""
    return min(16, max(1, next_power_of_two(window) // 64))


def code_rows(channels: int, window: int) -> int:
    """Tokens that a program of the fit's code kernel, one warp, holds: 64 values a thread."""
    return min(next_power_of_two(window), max(1, 2048 // next_power_of_two(channels)))
