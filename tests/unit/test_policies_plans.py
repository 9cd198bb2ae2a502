"""Plans of the policies that choose widths per window or layer, against hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest

from wq_cli import policies
from wq_cli.config import Quantization
from wq_cli.errors import UsageError
from wq_cli.policies.base import LayerPlan


def plan(spec: str, relevance: list[list[float]], layer: int = 0, **settings: object) -> LayerPlan:
    policy = policies.create(Quantization(policy=spec, **settings))  # type: ignore[arg-type]
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
