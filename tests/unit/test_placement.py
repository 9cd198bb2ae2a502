"""Where the tokens of a plan go, against a list made by hand, token by token."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from wq_cli.cache import Storage
from wq_cli.codecs import ChannelInWindow
from wq_cli.placement import Placement, VisualTokens
from wq_cli.policies.base import LayerPlan

WINDOW = 2
# Two rows of text (t), visual tokens (v) and padding (p): 7 visual tokens are 3 windows and a tail of one.
ROWS = ("ttvvvvvvvtt", "ptvvvtvvvvt")


def visual_tokens() -> VisualTokens:
    mask = torch.tensor([[c == "v" for c in row] for row in ROWS])
    padding = torch.tensor([[c != "p" for c in row] for row in ROWS])
    return VisualTokens.from_mask(mask, WINDOW, padding)


def plan(*bits: int) -> LayerPlan:
    return LayerPlan(np.array(bits, dtype=np.int64), np.array(bits, dtype=np.int64))


def test_tokens_in_storage_order() -> None:
    made = Placement.of(plan(2, 16, 4), visual_tokens(), reorder=True)
    assert [(key, value, index.tolist()) for key, value, index in made.segments] == [
        (4, 4, [[6, 7], [7, 8]]),
        (2, 2, [[2, 3], [2, 3]]),
    ]
    # Text, the window at full precision, the tail.
    assert made.run.tolist() == [[0, 1, 9, 10, 4, 5, 8], [0, 1, 5, 10, 4, 6, 9]]


def test_order_of_time_makes_a_segment_of_every_change() -> None:
    made = Placement.of(plan(2, 2, 4), visual_tokens(), reorder=False)
    assert [(bits, index[0].tolist()) for bits, _, index in made.segments] == [(2, [2, 3, 4, 5]), (4, [6, 7])]
    assert made.run[0].tolist() == [0, 1, 9, 10, 8]


@pytest.mark.parametrize("reorder", [True, False])
def test_a_window_larger_than_the_video_takes_no_memory(reorder: bool) -> None:
    visual = VisualTokens.from_mask(torch.tensor([[False, True, True, False]]), window=2**24)
    tracemalloc.start()
    made = Placement.of(plan(), visual, reorder)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made.run.tolist() == [[0, 3, 1, 2]] and peak_bytes < 2**20


@pytest.mark.parametrize("windows", [(16, 16, 16), (2, 2, 2), (8, 16, 2)])
def test_every_token_is_stored_once(windows: tuple[int, ...]) -> None:
    made = Placement.of(plan(*windows), visual_tokens(), reorder=True)
    stored = torch.cat([*(index for _, _, index in made.segments), made.run], dim=1)
    assert stored.sort(dim=1).values.tolist() == [list(range(11))] * 2


def test_equal_plans_share_their_placement_until_the_batch_grows() -> None:
    visual, cpu = visual_tokens(), torch.device("cpu")
    shared = Storage(None, visual, visual, ChannelInWindow(WINDOW), 0, True, None)
    first = shared.placement(plan(2, 16, 4), cpu)
    assert shared.placement(plan(2, 16, 4), cpu) is first
    assert shared.placement(LayerPlan(np.array([2, 16, 4]), np.array([2, 16, 2])), cpu) is not first
    again = shared.placement(plan(2, 16, 4), cpu)
    shared.visual = shared.prompts.repeated(4)
    assert shared.placement(plan(2, 16, 4), cpu).run.tolist() == again.run.repeat_interleave(2, dim=0).tolist()
