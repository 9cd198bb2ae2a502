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
    obstacle = _triton_obstacle(device, dtype, asked=request == "triton")
    if obstacle is None:
        return Backend("triton", "asked for" if request == "triton" else f"Triton and {device} are available")
    if request == "triton":
        raise RuntimeError(f"the Triton backend cannot run: {obstacle}")
    return Backend("torch", obstacle)


def _triton_obstacle(device: torch.device, dtype: torch.dtype, *, asked: bool) -> str | None:
    """Why the Triton kernels cannot take such tensors; None when they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1" and asked:
        # The interpreter is for tests: far slower than PyTorch, so that it only runs on request. Its bfloat16 is wrong.
        return None if dtype in (torch.float32, torch.float16) else f"the interpreter does not take {dtype}"
    if device.type != "cuda" or torch.version.hip is not None:
        return f"the tensors are on {device.type}, not on an NVIDIA GPU"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"the GPU has compute capability {capability[0]}.{capability[1]}, the kernels need 8.0"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"the kernels take float16 and bfloat16, not {str(dtype).removeprefix('torch.')}"
    return None
