"""The statistics of `wq eval` against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import results_by_hand as by_hand
import torch

from wq_cli.bench.measure import fidelity
from wq_cli.bench.scoring import chosen, clustered_error
from wq_cli.report.front import front


def test_one_cluster_has_no_error() -> None:
    assert clustered_error(np.array([1.0, 0.0, 1.0]), np.array([7, 7, 7])) is None


def test_clustered_error_of_single_values_is_the_usual_one() -> None:
    values = np.random.default_rng(0).random(200)
    usual = values.std() / np.sqrt(len(values))
    assert clustered_error(values, np.arange(200)) == pytest.approx(usual)


def test_copies_in_a_cluster_count_once() -> None:
    values = np.random.default_rng(1).random(50)
    once = clustered_error(values, np.arange(50))
    assert clustered_error(np.repeat(values, 4), np.repeat(np.arange(50), 4)) == pytest.approx(once)


def test_whole_weights_are_copies() -> None:
    generator = np.random.default_rng(2)
    values, weights, clusters = generator.random(30), generator.integers(1, 5, 30), generator.integers(0, 8, 30)
    copies = clustered_error(np.repeat(values, weights), np.repeat(clusters, weights))
    assert clustered_error(values, clusters, weights.astype(np.float64)) == pytest.approx(copies)


def test_fidelity_by_hand() -> None:
    full = torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]).log()
    other = torch.tensor([[[0.25, 0.75], [0.8, 0.2]]]).log()
    kl, same = fidelity(full, other)
    first = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    second = 0.9 * np.log(0.9 / 0.8) + 0.1 * np.log(0.1 / 0.2)
    assert kl == pytest.approx((first + second) / 2)
    assert same == 0.5


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("B", "a cat"),
        ("(B)", "a cat"),
        ("B. because", "a cat"),
        ("B: a dog", "a cat"),
        ("(A) a dog", "A dog"),
        ("A dog", "A dog"),
        ("a cat.", "a cat"),
        ("A cat", "a cat"),
        ("A bird", None),
        ("Both", None),
        ("D", None),
        ("", None),
    ],
)
def test_an_option_is_named_by_its_letter_or_its_text(text: str, choice: str | None) -> None:
    assert chosen(text, ("A dog", "a cat", "neither.")) == choice


def test_a_front_is_what_nothing_beats_at_as_many_bits() -> None:
    points = [(3.0, 0.5), (3.5, 0.6), (4.0, 0.2), (4.0, 0.3), (5.0, 0.2), (6.0, 0.1)]
    rows = [by_hand.eval_row(effective_bits=bits, kl_to_full=kl) for bits, kl in points]
    assert [(row.effective_bits, row.kl_to_full) for row in front(rows)] == [(3.0, 0.5), (4.0, 0.2), (6.0, 0.1)]
