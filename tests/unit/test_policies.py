"""Plans against hand-computed cases and the properties every plan has."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wq_cli import policies
from wq_cli.codecs import ChannelInWindow
from wq_cli.config import Quantization
from wq_cli.errors import UsageError, WqError
from wq_cli.placement import storage_order
from wq_cli.policies.base import Budget, LayerPlan


def plan(name: str, relevance: list[list[float]], s: float | None = 0.5, **settings: object) -> LayerPlan:
    policy = policies.create(Quantization(policy=name, **settings))  # type: ignore[arg-type]
    return policy.plan_layer(0, np.array(relevance), s)


def test_windowquant_by_hand() -> None:
    # At s = 1/2 and alpha = 2 the thresholds are 0.269 and 0.731.
    made = plan("windowquant", [[np.nan, 0.0, 0.26, 0.27, 0.73, 0.74, 1.0]])
    assert made.key_bits.tolist() == [16, 2, 2, 4, 4, 16, 16]
    assert made.value_bits.tolist() == made.key_bits.tolist()


def test_an_insensitive_layer_keeps_only_the_best_window_at_4_bits() -> None:
    assert plan("windowquant", [[np.nan, 0.0, 0.999, 1.0]], s=1.0).key_bits.tolist() == [16, 2, 2, 4]


def test_nothing_to_tell_apart_means_the_middle() -> None:
    assert plan("windowquant", [[np.nan] * 3]).key_bits.tolist() == [16, 4, 4]


def test_first_window_only_while_fixed() -> None:
    assert plan("windowquant", [[0.0, 1.0]], fixed_first_window=False).key_bits.tolist() == [2, 16]


def test_keys_and_values_apart() -> None:
    made = plan("windowquant", [[np.nan, 0.0, 0.5, 1.0]], kv_split=((16, 8), (8, 4), (4, 2)))
    assert made.key_bits.tolist() == [16, 4, 8, 16]
    assert made.value_bits.tolist() == [16, 2, 4, 8]


def test_a_batch_votes() -> None:
    made = plan("windowquant", [[np.nan, 0.0, 0.5], [np.nan, 0.0, 1.0], [np.nan, 1.0, 1.0]])
    assert made.key_bits.tolist() == [16, 2, 16]


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("norm", [0.0, 0.25])
def test_plans_window_by_window(rows: int, norm: float) -> None:
    """Eqs 10 and 11 and the vote as they are written, with scores that meet others and thresholds that meet 0 and 1."""
    draw = np.random.default_rng(rows)
    relevance = draw.uniform(size=(rows, 200))
    if norm:
        relevance = np.round(relevance / norm) * norm
    relevance[:, 0] = np.nan
    for alpha, s in [(2.0, 0.0), (2.0, 1.0), *draw.uniform([0.1, 0], [9, 1], size=(20, 2)).tolist()]:
        low = (math.exp(alpha * s) - 1) / (math.exp(alpha) - 1)
        high = (math.exp(-alpha * s) - 1) / (math.exp(-alpha) - 1)
        made = plan("windowquant", relevance.tolist(), s, alpha=alpha)
        for window in range(200):
            levels = [16 if r > high else 2 if r < low else 4 for r in relevance[:, window].tolist()]
            most = max((levels.count(width), width) for width in (2, 4, 16))[1]
            assert made.key_bits[window] == made.value_bits[window] == (most if window else 16)


@pytest.mark.parametrize(("name", "bits"), [("fp16", 16), ("rtn8", 8), ("rtn4", 4), ("rtn2", 2)])
def test_uniform(name: str, bits: int) -> None:
    assert plan(name, [[np.nan] * 3], s=None).key_bits.tolist() == [16, bits, bits]
    assert plan(name, [[np.nan] * 0], s=None).windows == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.floats(0, 1), st.integers(0, 5))
def test_random_has_windowquants_histogram(relevance: list[float], s: float, seed: int) -> None:
    rows = [[np.nan, *relevance]]
    dealt, ranked = plan("random", rows, s, seed=seed), plan("windowquant", rows, s)
    assert sorted(dealt.key_bits) == sorted(ranked.key_bits)
    assert dealt.key_bits[0] == 16
    assert plan("random", rows, s, seed=seed).key_bits.tolist() == dealt.key_bits.tolist()


def test_random_depends_on_its_seed() -> None:
    rows = [[np.nan, *np.linspace(0, 1, 60)]]
    assert plan("random", rows, seed=1).key_bits.tolist() != plan("random", rows, seed=2).key_bits.tolist()


def test_unknown_policy_names_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        policies.create(Quantization(policy="windowqant"))
    assert "did you mean `windowquant`" in (caught.value.hint or "")


def budget(bits: float, layers: int, windows: int, tail: int, window: int = 32) -> Budget:
    codec = ChannelInWindow(window)
    elements = 2 * layers * (windows * window + tail)
    return Budget(
        total_bits=bits * elements,
        layers=layers,
        tail_bits=2 * 16 * tail,
        full_window_bits=2 * 16 * window,
        window_bits=lambda k, v: codec.window_bits(k, 16) + codec.window_bits(v, 16),
        elements=elements,
    )


def spent(plans: list[LayerPlan], tail: int, window: int = 32) -> float:
    codec = ChannelInWindow(window)
    bits = elements = 0.0
    for made in plans:
        for side in (made.key_bits, made.value_bits):
            bits += sum(codec.window_bits(int(b), 16) for b in side) + 16 * tail
            elements += len(side) * window + tail
    return bits / elements


@given(
    bits=st.floats(4.0, 17.0),
    relevance=st.lists(st.floats(0, 1), min_size=30, max_size=60),
    tail=st.integers(0, 20),
    sensitivity=st.one_of(st.none(), st.lists(st.floats(0.01, 1), min_size=3, max_size=3)),
)
def test_budget_is_kept_and_used(
    bits: float, relevance: list[float], tail: int, sensitivity: list[float] | None
) -> None:
    policy = policies.create(Quantization(bits=bits))
    rows = np.array([[np.nan, *relevance]])
    policy.fit_budget(rows, sensitivity, budget(bits, 3, rows.shape[1], tail))
    plans = [policy.plan_layer(layer, rows, None) for layer in range(3)]
    used = spent(plans, tail)
    assert used <= bits + 1e-9
    # One more window at 16 instead of 4 bits must not have fitted, or nothing is left to raise.
    dearest = 2 * 32 * 11 / (2 * 3 * (rows.shape[1] * 32 + tail))
    assert used > min(bits, 16.0) - dearest - 1e-9


def test_budget_cuts_the_ranking() -> None:
    policy = policies.create(Quantization(bits=6.0))
    rows = np.array([[np.nan, *np.linspace(0, 1, 40)]])
    policy.fit_budget(rows, None, budget(6.0, 2, 41, 0))
    made = policy.plan_layer(0, rows, None).key_bits[1:]
    assert (np.diff(made) >= 0).all() and len(set(made.tolist())) > 1


def plan_at(g: float, relevance: list[list[float]], sensitivity: list[float], alpha: float) -> np.ndarray:
    """The plan of the thresholds with every s_i replaced by s_i ** g, [layers, W]."""
    return np.stack([plan("windowquant", relevance, s**g, alpha=alpha).key_bits for s in sensitivity])


@pytest.mark.parametrize("alpha", [0.1, 0.35, 2.0, 20.0])
@pytest.mark.parametrize("bits", [5.0, 7.5, 11.0, 14.0])
def test_budget_is_the_plan_of_some_power_of_the_sensitivities(alpha: float, bits: float) -> None:
    """g found by bisection over the cost of its plan; between it and the next crossing the budget may stop anywhere."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        sensitivity = rng.uniform(0.02, 0.99, 3).tolist()
        rows = [[np.nan, *rng.uniform(0.01, 0.99, 20)]]
        policy = policies.create(Quantization(bits=bits, alpha=alpha))
        limit = budget(bits, 3, 21, 5)
        policy.fit_budget(np.array(rows), sensitivity, limit)
        made = np.stack([policy.plan_layer(layer, np.array(rows), None).key_bits for layer in range(3)])
        below, above = 0.0, 200.0
        for _ in range(100):
            g = (below + above) / 2
            widths = plan_at(g, rows, sensitivity, alpha)
            cost = 3 * limit.tail_bits + sum(limit.window_bits(int(w), int(w)) for w in widths.flat)
            below, above = (g, above) if cost <= limit.total_bits else (below, g)
        assert (made >= plan_at(below, rows, sensitivity, alpha)).all()
        assert (made <= plan_at(above + 1e-9, rows, sensitivity, alpha)).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [*np.linspace(0.05, 5, 100), 40.0, 1000.0])
def test_budget_never_puts_a_higher_score_below_a_lower_one(alpha: float) -> None:
    """The best window, where both thresholds meet, and negative raw scores, which no threshold reaches, included."""
    for scores in (np.linspace(0, 1, 12), np.linspace(-0.3, 0.3, 12)):
        rows = np.array([[np.nan, *scores]])
        for bits in (6.0, 9.0, 13.0):
            policy = policies.create(Quantization(bits=bits, alpha=float(alpha), score_norm="raw"))
            policy.fit_budget(rows, [0.3, 0.97], budget(bits, 2, 13, 3))
            for layer in range(2):
                assert (np.diff(policy.plan_layer(layer, rows, None).key_bits[1:]) >= 0).all()


def test_budget_keeps_the_ranking_of_a_batch_when_one_request_has_none() -> None:
    policy = policies.create(Quantization(bits=8.0))
    rows = np.array([[np.nan] * 13, [np.nan, *np.linspace(0, 1, 12)]])
    policy.fit_budget(rows, None, budget(8.0, 2, 13, 0))
    made = policy.plan_layer(0, rows, None).key_bits[1:]
    assert (np.diff(made) >= 0).all() and len(set(made.tolist())) > 1


RANKING = ("windowquant", "random", "cocktail", "focus")


def test_budget_beside_others_is_for_policies_that_rank() -> None:
    for name in policies.names():
        beside = policies.beside_others(Quantization(bits=4.0), name)
        assert (beside.policy, beside.bits) == (name, 4.0 if name in RANKING else None)


def test_budget_too_small_says_what_is_needed() -> None:
    policy = policies.create(Quantization(bits=2.0))
    with pytest.raises(WqError, match=r"`2\.00` bits .* at least `3\.\d\d`"):
        policy.fit_budget(np.full((1, 41), 0.5), None, budget(2.0, 2, 41, 0))


@pytest.mark.parametrize(
    ("settings", "advised"),
    [
        (Quantization(), True),
        (Quantization(fixed_first_window=False), False),
        (Quantization(policy="cocktail"), False),
        (Quantization(policy="focus"), False),
    ],
)
def test_a_first_window_that_is_not_fixed_is_no_way_out_of_a_small_budget(
    settings: Quantization, advised: bool
) -> None:
    with pytest.raises(WqError) as caught:
        policies.create(settings).fit_budget(np.full((1, 41), 0.5), None, budget(2.0, 2, 41, 0))
    assert ("--no-fixed-first-window" in (caught.value.hint or "")) == advised


def test_uniform_has_no_budget() -> None:
    with pytest.raises(UsageError, match="ranks windows"):
        policies.create(Quantization(policy="rtn4")).fit_budget(np.zeros((1, 3)), None, budget(4.0, 1, 3, 0))


@given(st.lists(st.sampled_from([(16, 16), (4, 4), (2, 2), (4, 2), (16, 4)]), max_size=50), st.booleans())
def test_storage_order_is_a_permutation(pairs: list[tuple[int, int]], reorder: bool) -> None:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    segments, raw = storage_order(LayerPlan(table[:, 0], table[:, 1]), reorder)
    placed = [*(int(i) for _, _, chosen in segments for i in chosen), *(int(i) for i in raw)]
    assert sorted(placed) == list(range(len(pairs)))
    for key_bits, value_bits, chosen in segments:
        assert all(pairs[i] == (key_bits, value_bits) for i in chosen)
    if reorder:
        widths = [(k, v) for k, v, _ in segments]
        assert widths == sorted(set(pairs) - {(16, 16)}, reverse=True)
        assert raw.tolist() == [i for i, pair in enumerate(pairs) if pair == (16, 16)]
        assert all((np.diff(chosen) > 0).all() for _, _, chosen in segments)
    else:
        assert placed == sorted(placed)


@pytest.mark.parametrize(
    ("bits", "window", "expected"),
    [(2, 32, 3.0), (4, 32, 5.0), (8, 32, 9.0), (16, 32, 16.0), (2, 64, 2.5), (2, 20, 3.6)],
)
def test_effective_bits_of_a_width(bits: int, window: int, expected: float) -> None:
    assert ChannelInWindow(window).window_bits(bits, 16) / window == expected
