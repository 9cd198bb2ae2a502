"""Launch choices as pure functions of shapes and the card, so that they can be tested without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from wq_kernels.layout import RAW_BITS, Segment, codes_per_word

# Programs that fit on one multiprocessor at once, by the registers of the attention kernel.
PROGRAMS_PER_MULTIPROCESSOR = 6
# One pass over the card leaves its slowest program alone at the end; a second one fills that gap.
WAVES = 2
RAW_TILE_TOKENS = 64


@dataclass(frozen=True)
class Card:
    """What the choices need to know of a GPU."""

    multiprocessors: int


@lru_cache
def card(device: torch.device) -> Card:
    """The card behind a device; a small stand-in for the CPU, where kernels are interpreted."""
    if device.type != "cuda":
        return Card(multiprocessors=2)
    return Card(torch.cuda.get_device_properties(device).multi_processor_count)


def next_power_of_two(n: int) -> int:
    """Smallest power of two that is at least n, for n >= 1."""
    return 1 << (n - 1).bit_length()


def tokens_per_row(key_bits: int, value_bits: int) -> int:
    """Consecutive tokens that one row of a tile covers: a whole word of the side with the more codes in it."""
    return max(1 if bits == RAW_BITS else codes_per_word(bits) for bits in (key_bits, value_bits))


@dataclass(frozen=True)
class Stretch:
    """How the rows of one segment (or of the raw run) are shared out.

    Attributes:
        rows: Tile rows; a row is `tokens_per_row` tokens, the last of a window perhaps fewer.
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
    """Launch of decode attention.

    Attributes:
        query_block: Query rows of a program, a power of two, at least 8.
        segments: One stretch per segment.
        raw: Stretch of the raw run.
        warps: Warps per program.
        stages: Depth of the software pipeline.
    """

    query_block: int
    segments: tuple[Stretch, ...]
    raw: Stretch
    warps: int
    stages: int

    @property
    def splits(self) -> int:
        """Programs per KV head and block of query rows."""
        return sum(stretch.splits for stretch in (*self.segments, self.raw))


def plan_attend(
    query_rows: int, kv_heads: int, segments: Sequence[tuple[int, int, int, int]], raw_length: int, card: Card
) -> AttendPlan:
    """Share tokens out over programs so that the card is full and programs are equally long.

    Args:
        query_rows: G * Q, rows that share a KV head.
        kv_heads: B * Hkv.
        segments: (key bits, value bits, window, windows) of each.
        raw_length: Tokens of the raw run.
        card: The GPU.
    """
    query_block = min(32, max(8, next_power_of_two(query_rows)))
    programs = kv_heads * -(-query_rows // query_block)
    splits = max(1, card.multiprocessors * PROGRAMS_PER_MULTIPROCESSOR * WAVES // programs)
    tokens = raw_length + sum(window * windows for _, _, window, windows in segments)
    tokens_per_split = max(1, tokens // splits)
    stretches = []
    for key_bits, value_bits, window, windows in segments:
        per_row = tokens_per_row(key_bits, value_bits)
        tile_rows = RAW_TILE_TOKENS if per_row == 1 else 32
        rows = windows * -(-window // per_row)
        stretches.append(share_out(rows, tile_rows, per_row * tile_rows, tokens_per_split))
    raw = share_out(raw_length, RAW_TILE_TOKENS, RAW_TILE_TOKENS, tokens_per_split)
    return AttendPlan(query_block, tuple(stretches), raw, warps=2 if query_block == 8 else 4, stages=2)


def share_out(rows: int, tile_rows: int, tile_tokens: int, tokens_per_split: int) -> Stretch:
    """Equal shares of whole tiles, each of about `tokens_per_split` tokens."""
    if rows == 0:
        return Stretch(0, tile_rows, tile_rows, 0)
    tiles = -(-rows // tile_rows)
    splits = -(-tiles // max(1, round(tokens_per_split / tile_tokens)))
    tiles_per_split = -(-tiles // splits)
    return Stretch(rows, tile_rows, tiles_per_split * tile_rows, -(-tiles // tiles_per_split))


def describe(segments: Sequence[Segment]) -> list[tuple[int, int, int, int]]:
    """The part of the segments that `plan_attend` depends on."""
    return [(s.key.bits, s.value.bits, s.key.window, s.key.windows) for s in segments]
