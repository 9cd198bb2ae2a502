"""Launch choices: every row is covered once, the card is filled, memory limits hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wq_kernels.launch import (
    AttendTile,
    Card,
    SegmentShape,
    choose_tile,
    next_power_of_two,
    pack_tile,
    plan_attend,
    share_out,
    tokens_per_row,
)

H200 = Card(multiprocessors=132, shared_bytes=232_448)
SMALL = Card(multiprocessors=28, shared_bytes=101_376)


def test_tokens_per_row_is_the_longer_word() -> None:
    assert [tokens_per_row(*bits) for bits in ((2, 2), (4, 4), (8, 8), (16, 16), (4, 2), (8, 4), (16, 2), (4, 16))] == [
        16, 8, 4, 1, 16, 8, 16, 8,
    ]  # fmt: skip


@pytest.mark.parametrize(("window", "rows"), [(32, 6), (1, 3), (16, 3), (17, 6), (63, 12)])
def test_rows_of_a_segment(window: int, rows: int) -> None:
    assert SegmentShape(2, 2, window, 3).rows == rows


@given(
    rows=st.integers(0, 10_000),
    tile_rows=st.sampled_from([16, 32, 64]),
    per_row=st.sampled_from([1, 4, 8, 16]),
    tokens=st.integers(1, 10**6),
)
def test_shares_cover_every_row_once(rows: int, tile_rows: int, per_row: int, tokens: int) -> None:
    stretch = share_out(rows, tile_rows, per_row, tokens)
    assert stretch.rows_per_split % tile_rows == 0
    assert stretch.splits * stretch.rows_per_split >= rows
    assert rows == 0 or (stretch.splits - 1) * stretch.rows_per_split < rows


@given(
    query_rows=st.integers(1, 2000),
    kv_heads=st.integers(1, 512),
    windows=st.lists(st.integers(0, 4000), max_size=3),
    raw_length=st.integers(0, 5000),
)
def test_plan_fills_the_card_without_tiny_splits(
    query_rows: int, kv_heads: int, windows: list[int], raw_length: int
) -> None:
    shapes = [SegmentShape(bits, bits, 32, count) for bits, count in zip((2, 4, 16), windows, strict=False)]
    tile = choose_tile(query_rows, 128, shapes, H200)
    plan = plan_attend(query_rows, kv_heads, shapes, raw_length, tile, H200)
    assert len(plan.segments) == len(shapes)
    tokens = raw_length + sum(32 * shape.windows for shape in shapes)
    assert plan.splits <= len(shapes) + 1 + 2 * tokens / 256
    programs = plan.splits * kv_heads * -(-query_rows // tile.query_block)
    assert tokens < 4 * 512 * 132 or programs >= 132


def test_batch_one_spreads_over_the_card() -> None:
    shapes = [SegmentShape(2, 2, 32, 612)]
    plan = plan_attend(7, 4, shapes, 100, choose_tile(7, 128, shapes, H200), H200)
    assert plan.splits * 4 >= 132


def test_query_blocks_hold_the_heads_of_a_group() -> None:
    assert [choose_tile(rows, 128, [], H200).query_block for rows in (1, 7, 8, 9, 24, 700)] == [8, 8, 8, 16, 32, 32]


def test_channel_blocks_divide_the_head_size() -> None:
    assert [choose_tile(7, channels, [], H200).channel_block for channels in (64, 80, 96, 128, 40)] == [
        64,
        16,
        32,
        64,
        16,
    ]


def test_small_shared_memory_gets_one_stage() -> None:
    shapes = [SegmentShape(2, 2, 32, 10)]
    assert choose_tile(7, 128, shapes, H200).stages == 2
    assert choose_tile(7, 256, shapes, SMALL).stages == 1


def test_plan_keeps_the_tile() -> None:
    tile = AttendTile(8, 32, 64, 16, 1, 3)
    plan = plan_attend(7, 4, [SegmentShape(4, 4, 32, 40), SegmentShape(16, 16, 32, 3)], 50, tile, H200)
    assert [stretch.tile_rows for stretch in plan.segments] == [64, 16]
    assert (plan.tile, plan.raw.tile_rows) == (tile, 16)


def test_pack_tiles_hold_whole_windows_up_to_a_size() -> None:
    assert pack_tile(128, words=2, per_word=16).words == 2
    assert pack_tile(128, words=4, per_word=8).words == 4
    assert pack_tile(128, words=256, per_word=16).words == 4
    assert pack_tile(8192, words=2, per_word=16).words == 1


def test_next_power_of_two() -> None:
    assert [next_power_of_two(n) for n in (1, 2, 3, 80, 128)] == [1, 2, 4, 128, 128]
