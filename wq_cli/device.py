"""What is asked of a device: time and copies without waiting for it, and memory."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from wq_cli.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stopwatch:
    """Adds up the time of marked stretches; on CUDA with events, so that nothing waits while it runs."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._cuda:
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started
            return
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        stream = torch.cuda.current_stream(self._device)
        begin.record(stream)
        yield
        end.record(stream)
        self._events.append((begin, end))

    @property
    def ms(self) -> float:
        """Milliseconds so far; waits for the device."""
        if self._events:
            self._events[-1][1].synchronize()
        return self._seconds * 1e3 + sum(begin.elapsed_time(end) for begin, end in self._events)


class HostCopy:
    """A tensor on its way to the host: only who reads it waits, and only for what had to run before it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor.to("cpu", non_blocking=True, copy=True)  # into pinned memory
        self._arrived = None
        if tensor.device.type == "cuda":
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def get(self) -> torch.Tensor:
        """The tensor on the host."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensor


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on the device, in the order of its stream; the host goes on at once."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_bytes(device: torch.device) -> int:
    """Memory of a CUDA device that this process can have: free, or held by its allocator without use.

    A share of the card that PyTorch was told to stay within is not exceeded.
    """
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    share = int(total * torch.cuda.get_per_process_memory_fraction(device))
    return min(free + torch.cuda.memory_reserved(device) - allocated, share - allocated)


def memory(device: torch.device) -> tuple[int | None, int | None]:
    """(free, total) bytes of a device, or of the machine for a CPU; None where the system does not tell."""
    if device.type == "cuda":
        return free_bytes(device), torch.cuda.mem_get_info(device)[1]
    if sys.platform == "win32" or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None, None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:  # what could be had without swapping, the pages that only cache files included
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None, total
    return free, total


@contextmanager
def memory_errors(device: torch.device, hint: str) -> Iterator[None]:
    """Running out of memory becomes one line that says what to lower.

    Raises:
        DeviceError: The block ran out of memory.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        of_cpu = isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
        if not of_cpu and not isinstance(error, torch.OutOfMemoryError):
            raise
        free, total = memory(device)
        known = "" if free is None or total is None else f": {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"
        raise DeviceError(f"`{device}` ran out of memory{known}", hint) from error


def reset_peak(device: torch.device) -> None:
    """Forget the peak so far, where the device counts it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """Peak of the device's allocator since `reset_peak`; on a CPU that of the whole process so far; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
