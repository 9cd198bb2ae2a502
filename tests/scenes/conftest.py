"""Shared by the tests of the demo world: one untrained model, made once."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def untrained() -> tuple[Any, Any]:
    """(model, tokenizer) with random weights large enough for answers to differ."""
    import torch

    from wq_cli.scenes.model import build

    model, tokenizer = build(seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(2.5)
    return model.eval(), tokenizer
