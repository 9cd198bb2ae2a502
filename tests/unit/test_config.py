"""Settings that make no sense are refused where they are made."""

from __future__ import annotations

import pytest

from wq_cli.config import Generation, Quantization, Sampling
from wq_cli.errors import UsageError


@pytest.mark.parametrize(
    ("levels", "says"),
    [
        (((16, 16), (4, 2), (3, 2)), "not stored"),
        (((4, 4), (16, 16), (2, 2)), "wider"),
        (((16, 16), (4, 2), (4, 4)), "wider"),
    ],
)
def test_kv_split(levels: tuple[tuple[int, int], ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Quantization(kv_split=levels)


def test_kv_split_of_one_width_is_fine() -> None:
    Quantization(kv_split=((16, 16),) * 3)


@pytest.mark.parametrize(
    "settings",
    [
        {"frames": 4, "fps": 1.0},
        {"frames": 0},
        {"fps": 0.0},
        {"fps": float("nan")},
        {"start": -1.0},
        {"start": 5.0, "end": 5.0},
    ],
)
def test_sampling(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sampling(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [Quantization, Generation])
def test_seeds_that_no_generator_takes(settings: type) -> None:
    settings(seed=2**64 - 1)
    for seed in (-1, 2**64):
        with pytest.raises(UsageError, match="--seed"):
            settings(seed=seed)
