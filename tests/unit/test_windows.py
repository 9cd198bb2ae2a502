"""Eqs 8 to 11 against hand-computed cases, the pairwise definition in float64, and their identities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from wq_cli import windows


def pairwise_cosine(visual: np.ndarray, text: np.ndarray, window: int) -> list[float]:
    """Eq 8 as it is printed: the mean over all pairs of a window's tokens and the text's."""
    scores = []
    for i in range(len(visual) // window):
        pairs = [
            v @ t / (np.linalg.norm(v) * np.linalg.norm(t)) for v in visual[i * window : (i + 1) * window] for t in text
        ]
        scores.append(float(np.mean(pairs)))
    return scores


@pytest.mark.parametrize(("tokens", "text", "window"), [(64, 5, 32), (70, 1, 32), (32, 20, 32), (7, 3, 1)])
def test_similarity_is_eq_8(tokens: int, text: int, window: int) -> None:
    rng = np.random.default_rng(0)
    v, t = rng.normal(size=(tokens, 24)), rng.normal(size=(text, 24))
    got = windows.similarity(torch.from_numpy(v).float(), torch.from_numpy(t).float(), window)
    assert got.numpy() == pytest.approx(pairwise_cosine(v, t, window), abs=1e-6)


def test_similarity_by_hand() -> None:
    visual = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, -5.0]])
    text = torch.tensor([[7.0, 0.0]])
    # Window 0: cosines 1 and 0; window 1: -1 and 0.
    assert windows.similarity(visual, text, 2).tolist() == [0.5, -0.5]


def test_pearson_is_correlation() -> None:
    rng = np.random.default_rng(1)
    v, t = rng.normal(size=(6, 10)) + 3, rng.normal(size=(4, 10)) - 2
    expected = [np.corrcoef(np.vstack([v[i : i + 3], t]))[:3, 3:].mean() for i in (0, 3)]
    got = windows.similarity(torch.from_numpy(v), torch.from_numpy(t), 3, "pearson")
    assert got.numpy() == pytest.approx(expected, abs=1e-6)


def test_euclidean_falls_with_the_mean_distance() -> None:
    visual, text = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.zeros(1, 2)
    assert windows.similarity(visual, text, 1, "euclidean").tolist() == pytest.approx([1.0, 1 / 6])


def test_fewer_tokens_than_a_window_score_nothing() -> None:
    assert windows.similarity(torch.ones(31, 4), torch.ones(2, 4), 32).shape == (0,)


@pytest.mark.parametrize("scorer", ["cosine", "pearson", "euclidean"])
@pytest.mark.parametrize("block_values", [24, 200, 2**20])
def test_visual_tokens_inside_a_prompt(monkeypatch: pytest.MonkeyPatch, scorer: str, block_values: int) -> None:
    """Scored in blocks, between text and padding: as if they stood alone, in float64."""
    monkeypatch.setattr(windows, "CPU_BLOCK_VALUES", block_values)
    rng = np.random.default_rng(2)
    prompt, text = rng.normal(size=(80, 24)) + 0.3, rng.normal(size=(5, 24)) - 0.2
    prompt[:4] = 0
    at = np.concatenate([np.arange(9, 40), np.arange(43, 71)])
    v, t = prompt[at], text
    if scorer == "euclidean":
        distance = np.linalg.norm(v[:56, None] - t[None], axis=-1).mean(axis=1)
        expected = 1 / (1 + distance.reshape(7, 8).mean(axis=1))
    else:
        v, t = (x - x.mean(axis=1, keepdims=True) if scorer == "pearson" else x for x in (v, t))
        expected = np.array(pairwise_cosine(v, t, 8))
    got = windows.similarity(torch.from_numpy(prompt), torch.from_numpy(text), 8, scorer, torch.from_numpy(at))
    assert got.numpy() == pytest.approx(expected, abs=1e-6)


def float_product(x: torch.Tensor, y: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """What a GPU's `torch.mm` with an `out_dtype` is: exact products of halves, added up in float32."""
    return x.to(out_dtype) @ y.to(out_dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_all_pairs_in_half_precision_are_eq_8(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """The way of a GPU, some tokens of length 0 and text between the visual tokens included."""
    monkeypatch.setattr(windows, "_multiplies_in_half", lambda *tensors: True)
    monkeypatch.setattr(torch, "mm", float_product)
    prompt, text = torch.randn(90, 48).to(dtype), torch.randn(7, 48).to(dtype)
    prompt[5] = text[2] = 0
    at = torch.cat([torch.arange(3, 40), torch.arange(44, 80)])
    units = [x.double() / x.double().norm(dim=1, keepdim=True).clamp(min=1e-30) for x in (prompt, text)]
    pairs = (units[0] @ units[1].T)[at]
    expected = [float(pairs[i : i + 8].mean()) for i in range(0, 72, 8)]
    assert windows.similarity(prompt, text, 8, "cosine", at).tolist() == pytest.approx(expected, abs=1e-7)


def test_eight_kernels_score_all_windows_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted as they are dispatched, on a device without memory; what copies and computes nothing is a view."""
    launched = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if not func.is_view:
                launched.append(str(func))
            return func(*args, **kwargs or {})

    monkeypatch.setattr(windows, "_multiplies_in_half", lambda *tensors: True)
    prompt, text = (torch.empty(n, 48, dtype=torch.bfloat16, device="meta") for n in (90, 7))
    at = torch.empty(80, dtype=torch.int64, device="meta")
    with Count():
        scores = windows.similarity(prompt, text, 8, "cosine", at)
    assert scores.shape == (10,) and scores.dtype == torch.float32
    assert len(launched) <= 8, launched


@pytest.mark.parametrize("norm", ["minmax", "rank", "raw"])
@pytest.mark.parametrize("fixed", [True, False])
def test_relevance_of_a_batch_window_by_window(norm: str, fixed: bool) -> None:
    """Three questions: scores, scores with ties, and scores that say nothing."""
    draw = np.random.default_rng(5)
    scores = np.stack([draw.normal(size=12), draw.integers(0, 3, 12).astype(float), np.full(12, 0.25)])
    found = windows.relevance(scores, norm, fixed)  # type: ignore[arg-type]
    for row, relevance in zip(scores.tolist(), found.tolist(), strict=True):
        others = row[1:] if fixed else row
        for index, (score, r) in enumerate(zip(row, relevance, strict=True)):
            says_nothing = norm != "raw" and max(others) - min(others) < 1e-6
            if (fixed and index == 0) or says_nothing:
                assert math.isnan(r)
            elif norm == "rank":
                before = sum(s < score for s in others) + others[: index - fixed].count(score)
                assert r == (before + 0.5) / len(others)
            elif norm == "raw":
                assert r == score
            else:
                assert r == (score - min(others)) / (max(others) - min(others))


def test_relevance_leaves_the_fixed_first_window_out() -> None:
    scores = np.array([9.0, 0.1, 0.3, 0.2])
    assert np.isnan(windows.relevance(scores, "minmax")[0])
    assert windows.relevance(scores, "minmax")[1:].tolist() == pytest.approx([0, 1, 0.5])
    assert windows.relevance(scores, "minmax", fixed_first_window=False)[0] == 1
    assert windows.relevance(scores, "rank")[1:].tolist() == pytest.approx([1 / 6, 5 / 6, 3 / 6])
    assert windows.relevance(scores, "raw")[1:].tolist() == [0.1, 0.3, 0.2]


@pytest.mark.parametrize("scores", [[0.5, 0.2], [0.5, 0.2, 0.2, 0.2], [0.5], []])
def test_nothing_to_tell_apart(scores: list[float]) -> None:
    assert np.isnan(windows.relevance(np.array(scores), "minmax")).all()


@pytest.mark.parametrize(
    ("s", "low", "high"),
    [(0.1, 0.035, 0.210), (0.5, 0.269, 0.731), (0.9, 0.790, 0.965), (0.95, 0.890, 0.984), (0.99, 0.977, 0.997)],
)
def test_thresholds_at_alpha_2(s: float, low: float, high: float) -> None:
    assert windows.thresholds(s, 2.0) == pytest.approx((low, high), abs=6e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("s", [0.0, 0.5, 0.999, 1.0])
def test_thresholds_of_a_huge_alpha_leave_the_middle_to_all(s: float) -> None:
    low, high = windows.thresholds(s, 1e4)
    assert (low, high) == pytest.approx((math.exp(1e4 * (s - 1)) if s else 0, 1 if s else 0))


@given(st.floats(0, 1), st.floats(0.01, 20))
def test_threshold_identities(s: float, alpha: float) -> None:
    low, high = windows.thresholds(s, alpha)
    assert 0 <= low <= s + 1e-12 and s - 1e-12 <= high <= 1
    mirrored_low, _ = windows.thresholds(1 - s, alpha)
    assert high == pytest.approx(1 - mirrored_low, abs=1e-9)


@given(st.floats(0.01, 20))
def test_widest_middle_band(alpha: float) -> None:
    low, high = windows.thresholds(0.5, alpha)
    assert high - low == pytest.approx(math.tanh(alpha / 4))


def test_sensitivity_is_the_mean_cosine() -> None:
    before = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]]])
    after = torch.tensor([[[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]]])
    assert float(windows.sensitivity(before, after)) == pytest.approx((1 + math.sqrt(0.5) + 1) / 3)
    mask = torch.tensor([[False, True, False]])
    assert float(windows.sensitivity(before, after, mask)) == pytest.approx(math.sqrt(0.5))
    assert float(windows.sensitivity(before, -after)) == 0


def test_sensitivity_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "CPU_BLOCK_VALUES", 100)
    rng = np.random.default_rng(3)
    before, added = rng.normal(size=(2, 13, 16)), rng.normal(size=(2, 13, 16))
    after, mask = before + 0.5 * added, rng.random((2, 13)) < 0.7
    cosine = (before * after).sum(-1) / np.linalg.norm(before, axis=-1) / np.linalg.norm(after, axis=-1)
    got = windows.sensitivity(torch.from_numpy(before), torch.from_numpy(after), torch.from_numpy(mask))
    assert float(got) == pytest.approx(cosine[mask].mean(), abs=1e-6)


def test_vote_is_the_majority_and_ties_go_up() -> None:
    levels = np.array([[0, 0, 2, 1], [0, 1, 0, 1], [2, 1, 2, 0], [0, 0, 0, 0]])
    assert windows.vote(levels).tolist() == [0, 1, 2, 1]
    assert windows.vote(np.array([[0, 1], [2, 2]])).tolist() == [2, 2]
    assert windows.vote(np.zeros((3, 0), dtype=np.int64)).shape == (0,)
