"""The statistics of `wq eval` against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wq_cli.bench.measure import fidelity
from wq_cli.bench.scoring import clustered_error


def test_clustered_error_of_single_values_is_the_usual_one() -> None:
    values = np.random.default_rng(0).random(200)
    usual = values.std() / np.sqrt(len(values))
    assert clustered_error(values, np.arange(200)) == pytest.approx(usual)


def test_copies_in_a_cluster_count_once() -> None:
    values = np.random.default_rng(1).random(50)
    once = clustered_error(values, np.arange(50))
    assert clustered_error(np.repeat(values, 4), np.repeat(np.arange(50), 4)) == pytest.approx(once)


def test_fidelity_by_hand() -> None:
    full = torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]).log()
    other = torch.tensor([[[0.25, 0.75], [0.8, 0.2]]]).log()
    kl, same = fidelity(full, other)
    first = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    second = 0.9 * np.log(0.9 / 0.8) + 0.1 * np.log(0.1 / 0.2)
    assert kl == pytest.approx((first + second) / 2)
    assert same == 0.5
