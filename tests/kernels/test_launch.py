"""Launch choices: every token is covered once, the card is filled, memory limits hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wq_kernels.launch import (
    AttendPlan,
    Card,
    SegmentShape,
    Stretch,
    choose_tile,
    code_rows,
    fit_warps,
    fits_registers,
    next_power_of_two,
    pack_rows,
    plan_attend,
)

H200 = Card(multiprocessors=132, shared_bytes=232_448)
SMALL = Card(multiprocessors=28, shared_bytes=101_376)


def plan(
    query_rows: int, kv_heads: int, shapes: tuple[SegmentShape, ...], raw_length: int, card: Card = H200
) -> AttendPlan:
    return plan_attend(query_rows, kv_heads, shapes, raw_length, choose_tile(query_rows, 128, shapes, card), card)


def units(plan: AttendPlan, stretch: Stretch, program: int) -> set[int]:
    """Units of a stretch that start in the time of a program, one by one."""
    return {u for u in range(stretch.units) if (stretch.start + u * stretch.cost) // plan.budget == program}


@pytest.mark.parametrize(
    ("window", "tile"), [(32, 32), (1, 16), (16, 16), (17, 32), (63, 64), (64, 32), (65, 48), (100, 64), (80, 16)]
)
def test_tiles_are_equal_parts_of_a_window(window: int, tile: int) -> None:
    assert SegmentShape(2, 2, window, 3).tile_tokens == tile
    assert SegmentShape(2, 2, window, 3).tiles == 3 * -(-window // tile)


def test_tiles_of_plain_values_are_small() -> None:
    assert [SegmentShape(*bits, 64, 3).tile_tokens for bits in ((16, 16), (16, 2), (4, 16), (8, 2))] == [16] * 4


@given(
    query_rows=st.integers(1, 300),
    kv_heads=st.integers(1, 512),
    windows=st.lists(st.integers(0, 60), max_size=3),
    raw_length=st.integers(0, 700),
)
def test_every_unit_has_one_program_and_every_partial_output_one_writer(
    query_rows: int, kv_heads: int, windows: list[int], raw_length: int
) -> None:
    shapes = tuple(SegmentShape(bits, bits, 32, count) for bits, count in zip((2, 4, 16), windows, strict=False))
    made = plan(query_rows, kv_heads, shapes, raw_length)
    assert [stretch.units for stretch in made.segments] == [shape.tiles for shape in shapes]
    assert made.raw.units == -(-raw_length // 16)
    written = []
    for stretch in (*made.segments, made.raw):
        shares = [units(made, stretch, program) for program in range(made.programs)]
        assert sum(len(share) for share in shares) == stretch.units
        written += [program + stretch.slots for program, share in enumerate(shares) if share]
    assert sorted(written) == list(range(made.partials))


@given(batch=st.integers(1, 64), mix=st.tuples(*[st.integers(0, 600)] * 3), raw_length=st.integers(0, 3000))
def test_all_programs_run_at_once_and_none_takes_longer_than_its_share(
    batch: int, mix: tuple[int, int, int], raw_length: int
) -> None:
    shapes = tuple(SegmentShape(bits, bits, 32, count) for bits, count in zip((16, 4, 2), mix, strict=True))
    made = plan(7, 4 * batch, shapes, raw_length)
    at_once = choose_tile(7, 128, shapes, H200).programs_at_once(H200)
    assert made.programs * 4 * batch <= max(at_once, 4 * batch)
    # What starts in a program's time may end after it, by one unit at most.
    total = sum(stretch.units * stretch.cost for stretch in (*made.segments, made.raw))
    longest = max(stretch.cost for stretch in (*made.segments, made.raw))
    assert (made.programs - 1) * made.budget <= total <= made.programs * made.budget + longest


def test_batch_one_spreads_over_the_card() -> None:
    assert plan(7, 4, (SegmentShape(2, 2, 32, 612),), 100).programs * 4 >= 4 * 132


def test_a_large_batch_leaves_no_program_for_a_second_round() -> None:
    made = plan(7, 4 * 32, (SegmentShape(2, 2, 32, 612),), 16)
    assert made.programs == 8
    assert made.programs * 128 <= 8 * 132


def test_query_blocks() -> None:
    assert [choose_tile(rows, 128, (), H200).query_block for rows in (1, 7, 8, 9, 24, 700)] == [8, 8, 8, 16, 16, 16]


def test_programs_at_once_follow_registers_and_shared_memory() -> None:
    packed, wide = (SegmentShape(2, 2, 32, 10),), (SegmentShape(8, 8, 60, 10),)
    assert choose_tile(7, 128, packed, H200).programs_at_once(H200) == 8 * 132
    assert choose_tile(7, 128, (SegmentShape(16, 16, 32, 10),), H200).programs_at_once(H200) == 12 * 132
    tile = choose_tile(7, 256, wide, SMALL)
    assert tile.stages == 2
    assert tile.programs_at_once(SMALL) == 2 * 28
    assert tile.shared_bytes <= SMALL.shared_bytes


@pytest.mark.parametrize(
    ("bits", "window", "channels", "query_rows", "fits"),
    [
        ((2, 2), 32, 128, 7, True),
        ((8, 4), 16, 64, 8, True),
        ((2, 2), 32, 128, 9, False),
        ((2, 2), 32, 80, 7, False),
        ((2, 2), 33, 128, 7, False),
        ((16, 2), 32, 128, 7, False),
    ],
)
def test_what_fits_registers(bits: tuple[int, int], window: int, channels: int, query_rows: int, fits: bool) -> None:
    shape = SegmentShape(*bits, window, 10)
    tile = choose_tile(query_rows, channels, (shape,), H200)
    assert fits_registers(shape, channels, tile.query_block) == fits
    assert (tile.registers == 255) == fits


def test_pack_tiles_give_a_thread_sixteen_values() -> None:
    assert [pack_rows(channels) * channels for channels in (16, 64, 128, 256)] == [16 * 32] * 4
    assert (pack_rows(80), pack_rows(96), pack_rows(1024)) == (4, 4, 1)


def test_fits_hold_a_few_dozen_values_a_thread() -> None:
    assert [16 * window // (32 * fit_warps(window)) for window in (64, 128, 1024)] == [32] * 3
    assert [fit_warps(window) for window in (1, 32, 33, 4096)] == [1, 1, 1, 16]
    assert [code_rows(channels, 64) * channels for channels in (32, 64, 128, 256)] == [2048] * 4
    assert (code_rows(80, 64), code_rows(128, 20), code_rows(32, 7), code_rows(128, 1)) == (16, 16, 8, 1)


def test_next_power_of_two() -> None:
    assert [next_power_of_two(n) for n in (1, 2, 3, 80, 128)] == [1, 2, 4, 128, 128]
