"""Plans of the policies that choose widths per window or layer, against hand-computed cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wq_cli import policies
from wq_cli.config import Quantization
from wq_cli.errors import UsageError, WqError
from wq_cli.placement import VisualTokens
from wq_cli.policies.base import LayerPlan
from wq_cli.policies.focus import LEAST_RELEVANCE, counted, layer_shares, look, spend
from wq_cli.policies.kvtuner import PAIRS, cheapest


def plan(spec: str, relevance: list[list[float]], layer: int = 0, **more: object) -> LayerPlan:
    policy = policies.create(Quantization(policy=spec, **more))  # type: ignore[arg-type]
    return policy.plan_layer(layer, np.array(relevance), None)


def test_cocktail_by_hand() -> None:
    # Of scores from 0 to 1: 2 bits below 0.6, full precision above 0.9; the first chunk is like any other.
    made = plan("cocktail", [[0.0, 0.59, 0.6, 0.9, 0.91, 1.0]])
    assert made.key_bits.tolist() == [2, 2, 4, 4, 16, 16]
    assert made.value_bits.tolist() == made.key_bits.tolist()
    assert plan("cocktail:low=0.2:high=0.5", [[0.1, 0.3, 0.6]]).key_bits.tolist() == [2, 4, 16]


def test_cocktail_is_the_same_in_every_layer() -> None:
    scores = [[0.0, 0.7, 1.0]]
    assert plan("cocktail", scores, layer=5).key_bits.tolist() == plan("cocktail", scores).key_bits.tolist()


def test_thresholds_of_cocktail_do_not_cross() -> None:
    with pytest.raises(UsageError, match="at most 1 together"):
        plan("cocktail:low=0.8:high=0.3", [[0.0]])


COST = {2: 2 * 64 + 32, 4: 4 * 64 + 32, 8: 8 * 64 + 32, 16: 16 * 64}


def error_of(widths: np.ndarray, worth: np.ndarray) -> float:
    """Sum that focus wants small, in the terms of its docstring; both [N, 2]."""
    return float((worth * 4.0 ** -widths.astype(float)).sum())


def bits_of(*sides: np.ndarray) -> int:
    return sum(COST[int(bits)] for side in sides for bits in side.ravel())


@given(
    matters=st.lists(st.floats(0.001, 1), min_size=3, max_size=3).map(np.array),
    room=st.floats(6 * COST[2], 6 * COST[16]),
    key_weight=st.floats(1, 16),
)
@settings(max_examples=20, deadline=None)
def test_no_plan_of_the_same_size_has_less_error_than_that_of_focus(
    matters: np.ndarray, room: float, key_weight: float
) -> None:
    worth = (matters / matters.mean() + LEAST_RELEVANCE)[:, None] * [key_weight, 1.0]
    found = spend(counted(matters)[:, None] * [key_weight, 1.0], room, 64)
    spent = bits_of(found)
    assert spent <= room
    every = np.array(list(itertools.product(COST, repeat=6)))
    cost = np.vectorize(COST.get)(every).sum(axis=1)
    best = min(error_of(widths.reshape(3, 2), worth) for widths in every[cost <= spent])
    assert error_of(found, worth) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_focus_takes_step_after_step_until_one_does_not_fit(seed: int) -> None:
    """By a loop over all steps; every other case has windows that matter alike, of which the earlier go first."""
    draw = np.random.default_rng(seed)
    worth = draw.integers(1, 4, (60, 2)) / 2.0 if seed % 2 else draw.lognormal(0, 2, (60, 2))
    room = draw.uniform(0.9 * 120 * COST[2], 1.1 * 120 * COST[16])
    widths, left = np.full((60, 2), 2), room - 120 * COST[2]
    following = {2: 4, 4: 8, 8: 16}
    steps = [
        (-worth[window, side] * (4.0**-low - 4.0**-high) / (COST[high] - COST[low]), window, side, high)
        for window, side in np.ndindex(60, 2)
        for low, high in following.items()
    ]
    for _, window, side, high in sorted(steps):
        left -= COST[high] - COST[high // 2]
        if left < 0:
            break
        widths[window, side] = high
    np.testing.assert_array_equal(spend(worth, room, 64), widths)


def test_focus_keeps_to_its_average_of_bits() -> None:
    made = plan("focus:bits=3.25:relevance=similarity", [np.linspace(0, 1, 40).tolist()])
    used = bits_of(made.key_bits, made.value_bits) / (40 * 2 * 64)
    assert 3.25 - 1024 / (40 * 128) < used <= 3.25
    assert made.key_bits.mean() > made.value_bits.mean()
    assert (np.diff(made.key_bits) >= 0).all()


@pytest.mark.parametrize("mean", [2.5, 3.3, 4.75, 9.0])
def test_layers_get_bits_by_what_they_are_worth(mean: float) -> None:
    """Every side of a layer at one width is best; what is left is less than a step and goes to all layers alike."""
    measured = np.random.default_rng(1).lognormal(0, 3, size=(3, 2))
    shares = layer_shares(measured, mean * 128, 64)
    np.testing.assert_allclose(shares.mean(), mean * 128)
    every = np.array(list(itertools.product(COST, repeat=6))).reshape(-1, 3, 2)
    cost = np.vectorize(COST.get)(every).sum(axis=2)
    errors = (measured * 4.0 ** -every.astype(float)).sum(axis=(1, 2))
    left = shares - cost
    like_ours = (np.ptp(left, axis=1) < 1e-6) & (left[:, 0] > -1e-6) & (left.sum(axis=1) < 8 * 64)
    fits = cost.sum(axis=1) <= cost[like_ours].sum(axis=1).max()
    assert errors[like_ours].min() <= errors[fits].min() * (1 + 1e-9)


def test_focus_spends_where_it_was_measured_and_no_more_than_its_budget() -> None:
    policy = policies.create(Quantization(policy="focus:bits=3.5"))
    policy.told({"key": [1.0, 1e-4, 1e-2], "value": [1e-3, 1e-1, 1e-2]})
    plans = [policy.plan_layer(layer, np.linspace(0, 1, 20)[None], None) for layer in range(3)]
    used = sum(bits_of(made.key_bits, made.value_bits) for made in plans) / (3 * 20 * 128)
    assert 3.5 - 512 / (3 * 20 * 128) < used <= 3.5
    keys, values = (np.array([getattr(made, side).mean() for made in plans]) for side in ("key_bits", "value_bits"))
    assert keys[0] >= keys[2] > keys[1] and keys[0] > values[0] and values[1] > keys[1]
    equal = policies.create(Quantization(policy="focus:layers=equal"))
    assert not equal.takes_numbers and policy.takes_numbers and not policy.needs_numbers


@pytest.mark.parametrize(
    "numbers", [{}, {"key": [1.0]}, {"key": [1.0], "value": [-1.0]}, {"key": [[1.0]], "value": [1.0]}]
)
def test_focus_wants_one_number_for_each_side_of_a_layer(numbers: dict[str, list[float]]) -> None:
    with pytest.raises(WqError, match="incomplete"):
        policies.create(Quantization(policy="focus")).told(numbers)


def test_what_the_question_pays_attention_to() -> None:
    """Against softmax written out: two rows of which one is padded by two, two query heads on one KV head."""
    draw = np.random.default_rng(0)
    queries, keys = draw.normal(size=(2, 2, 11, 4)), draw.normal(size=(2, 1, 11, 4))
    visual_mask = torch.zeros(2, 11, dtype=torch.bool)
    visual_mask[:, 3:7] = True
    real = torch.ones(2, 11, dtype=torch.bool)
    real[1, :2] = False
    visual = VisualTokens.from_mask(visual_mask, 2, real)
    seen = look(torch.tensor(queries), torch.tensor(keys), visual)
    for row in range(2):
        before = slice(2 * row, 7)
        paid = np.zeros((8, 11))
        for place, (head, token) in enumerate(itertools.product(range(2), range(7, 11))):
            scores = np.exp(keys[row, 0, before] @ queries[row, head, token] / 2)
            paid[place, before] = scores / scores.sum()
        np.testing.assert_allclose(seen.attention[row, 0], paid.mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(seen.strength[row, 0], np.sqrt((paid**2).mean(axis=0)), atol=1e-6)
        asked = queries[row, :, 7:].reshape(8, 4)
        np.testing.assert_allclose(seen.moment[row, 0], asked.T @ asked / 8, atol=1e-5)
        windows = paid.mean(axis=0)[3:7].reshape(2, 2).sum(axis=1)
        np.testing.assert_allclose(seen.of_windows(visual)[row], windows, atol=1e-6)


def test_kvtuner_finds_the_cheapest_pairs_under_its_cap() -> None:
    draw = np.random.default_rng(3)
    for cap in (2.0, 3.1, 4.0, 5.5, 8.0):
        costs = draw.exponential(size=(3, 9))
        found = cheapest(costs, cap)
        fitting = [
            sum(costs[layer, pair] for layer, pair in enumerate(chosen))
            for chosen in itertools.product(range(9), repeat=3)
            if sum(sum(PAIRS[pair]) for pair in chosen) <= 2 * 3 * cap
        ]
        assert sum(sum(pair) for pair in found) <= 2 * 3 * cap
        assert sum(costs[layer, PAIRS.index(pair)] for layer, pair in enumerate(found)) == pytest.approx(min(fitting))


def test_kvtuner_gives_layers_their_pairs_and_presets_one_to_all() -> None:
    policy = policies.create(Quantization(policy="kvtuner:cap=5"))
    costs = np.ones((2, 9))
    costs[0, PAIRS.index((8, 4))] = costs[1, PAIRS.index((2, 4))] = 0.0
    assert policy.needs_numbers
    policy.told({"kivi": costs.tolist()})
    made = [policy.plan_layer(layer, np.full((1, 3), np.nan), None) for layer in range(2)]
    assert [(m.key_bits.tolist(), m.value_bits.tolist()) for m in made] == [([8] * 3, [4] * 3), ([2] * 3, [4] * 3)]
    preset = plan("kvtuner:pairs=k4v2", [[np.nan] * 2])
    assert (preset.key_bits.tolist(), preset.value_bits.tolist()) == ([4, 4], [2, 2])


def test_kvmix_gives_more_bits_to_the_fifth_with_the_largest_gradients() -> None:
    policy = policies.create(Quantization(policy="kvmix"))
    keys, values = np.zeros(10), np.zeros(10)
    keys[[2, 7]], values[[7, 9]] = 5.0, 3.0
    policy.told({"key_gradient": keys.tolist(), "value_gradient": values.tolist()})
    made = [policy.plan_layer(layer, np.full((1, 1), np.nan), None) for layer in range(10)]
    assert [int(m.key_bits[0]) for m in made] == [2, 2, 4, 2, 2, 2, 2, 4, 2, 2]
    assert [int(m.value_bits[0]) for m in made] == [2, 2, 2, 2, 2, 2, 2, 4, 2, 4]


@pytest.mark.parametrize("spec", ["kvtuner", "kvmix"])
def test_numbers_that_are_not_there_say_how_to_get_them(spec: str) -> None:
    with pytest.raises(WqError, match="incomplete") as caught:
        policies.create(Quantization(policy=spec)).told({"other": [1.0]})
    assert f"wq calibrate --policy {spec}" in (caught.value.hint or "")
