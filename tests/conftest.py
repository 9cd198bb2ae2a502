"""What every test starts from: seeds, ears for Ctrl-C, and GPU tests that run, skip or fail by what the machine has."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

# Before PyTorch is loaded, as `wq` does: threads that wait busily take the cores from the other workers' threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # Shells start background jobs deaf to Ctrl-C, and the commands that tests interrupt would be so too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """Without a GPU, Triton is loaded for its interpreter before any test module is.

    Triton makes its own functions for the interpreter or for a GPU when it is imported, and much of PyTorch imports it:
    in a run of all tests the kernel tests would come too late.
    """
    if find_spec("triton") is None:
        return
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        import triton  # noqa: F401

        del os.environ["TRITON_INTERPRET"]


@pytest.fixture(autouse=True)
def fixed_seeds() -> Iterator[None]:
    """Seeds of random and torch; torch's state comes back afterwards. Tests that never import torch do not load it."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.random.set_rng_state(state)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` without a CUDA device; with WQ_REQUIRE_GPU=1 they fail instead."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if torch.cuda.is_available():
        return
    if os.environ.get("WQ_REQUIRE_GPU") == "1":
        raise pytest.UsageError("WQ_REQUIRE_GPU is 1 and there is no CUDA device")
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
