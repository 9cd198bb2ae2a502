"""Memory that is left on a card, from what its driver and its allocator say."""

from __future__ import annotations

import pytest
import torch

from wq_cli.device import free_bytes


@pytest.mark.parametrize(
    ("free", "share", "expected"),
    [
        (50, 1.0, 50 + 10),  # the allocator holds 30, 20 of them in use
        (0, 1.0, 10),
        (50, 0.4, 40 - 20),
        (50, 0.8, 50 + 10),
    ],
)
def test_free_bytes(monkeypatch: pytest.MonkeyPatch, free: int, share: float, expected: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: share)
    assert free_bytes(torch.device("cuda")) == expected
