"""Which implementation runs, and why: Triton kernels on a GPU that can run them, else plain PyTorch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch

Request = Literal["auto", "triton", "torch"]
REQUESTS = ("auto", "triton", "torch")

_request: ContextVar[Request] = ContextVar("wq_kernels_backend", default="auto")


@dataclass(frozen=True)
class Backend:
    """The implementation chosen and the reason, in words for a person."""

    name: Literal["triton", "torch"]
    reason: str


@contextmanager
def use_backend(request: Request) -> Iterator[None]:
    """Ask for an implementation inside a `with` block; "auto" is the default outside.

    Raises:
        ValueError: The name is unknown.
    """
    if request not in REQUESTS:
        raise ValueError(f"backend must be one of {', '.join(REQUESTS)}, not {request}")
    token = _request.set(request)
    try:
        yield
    finally:
        _request.reset(token)


def choose_backend(device: torch.device, dtype: torch.dtype) -> Backend:
    """The implementation for tensors of this device and dtype under the current request.

    Raises:
        RuntimeError: "triton" was asked for and cannot run here.
    """
    request = _request.get()
    if request == "torch":
        return Backend("torch", "asked for")
    obstacle = _triton_obstacle(device, dtype, interpret=request == "triton")
    if obstacle is None:
        return Backend("triton", "asked for" if request == "triton" else f"Triton and {device} are available")
    if request == "triton":
        raise RuntimeError(f"the Triton backend cannot run: {obstacle}")
    return Backend("torch", obstacle)


def _triton_obstacle(device: torch.device, dtype: torch.dtype, *, interpret: bool) -> str | None:
    """Why the Triton kernels cannot take such tensors; None when they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the kernels do not take {dtype}"
    # The interpreter is for tests: far slower than the torch path, so that only a request brings it.
    if device.type == "cpu" and interpret and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device.type != "cuda":
        return f"the tensors are on {device.type}, not on a GPU"
    if torch.version.hip is not None:
        return "the kernels are for NVIDIA GPUs"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"the GPU has compute capability {major}.{minor}; the kernels need 8.0"
    return None
