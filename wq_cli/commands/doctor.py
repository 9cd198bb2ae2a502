"""`wq doctor`: what wq finds on this machine and what it would choose."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass

from wq_cli import __version__
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.config import Runtime

EXAMPLES = """\
[bold]Examples[/]
$ wq doctor
$ wq doctor --device cuda:1 --json"""
_PACKAGES = ("torch", "transformers", "triton", "torchvision", "av", "numpy", "pillow", "rich", "typer")


@dataclass(frozen=True)
class DoctorResult:
    """What `wq doctor` prints.

    Attributes:
        versions: Package to version, None where it is not installed.
        backend_reason: Why that implementation of the kernels.
        memory_total_bytes, memory_free_bytes: Of the device, or of the machine for a CPU (None when unknown).
    """

    command: str
    versions: dict[str, str | None]
    platform: str
    cpu_threads: int
    profile: str
    device: str
    device_name: str
    dtype: str
    backend: str
    backend_reason: str
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    video_decoder: str


@grouped
def doctor(*, runtime: Runtime, output: Output) -> None:
    """Show versions, the device, the backend and why, and memory."""
    output.check()
    result = _examine(runtime)
    output.emit(result)
    if not output.json:
        from rich.table import Table
        from rich.text import Text

        from wq_cli.report.format import size

        screen = output.screen()
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        memory = " of ".join(
            size(count) for count in (result.memory_free_bytes, result.memory_total_bytes) if count is not None
        )
        rows = {
            "versions": ", ".join(f"{name} {found or 'missing'}" for name, found in result.versions.items()),
            "platform": result.platform,
            "profile": result.profile,
            "device": f"{result.device} ({result.device_name}), {result.cpu_threads} CPU threads",
            "dtype": result.dtype,
            "backend": f"{result.backend}: {result.backend_reason}",
            "memory": f"{memory} free" if memory else "unknown",
            "video": result.video_decoder,
        }
        for name, text in rows.items():
            grid.add_row(name, Text(text))
        screen.result(grid)


def _examine(runtime: Runtime) -> DoctorResult:
    """Ask torch, the kernels and the decoder.

    Raises:
        WqError: The device or the backend that was asked for cannot be used.
    """
    import av
    import torch

    import wq_kernels
    from wq_cli.errors import DeviceError
    from wq_cli.models.loading import choose_device, choose_dtype

    device = choose_device(runtime.device)
    dtype = choose_dtype(runtime.dtype, device, None)
    try:
        with wq_kernels.use_backend(runtime.backend):
            backend = wq_kernels.choose_backend(device, dtype)
    except RuntimeError as error:
        raise DeviceError(str(error), "leave `--backend` away to fall back to PyTorch") from error
    free, total = torch.cuda.mem_get_info(device) if device.type == "cuda" else _machine_memory()
    return DoctorResult(
        command="doctor",
        versions={
            "wq": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        platform=platform.platform(),
        cpu_threads=torch.get_num_threads(),
        profile=runtime.profile or "",
        device=str(device),
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        dtype=str(dtype).removeprefix("torch."),
        backend=backend.name,
        backend_reason=backend.reason,
        memory_total_bytes=total,
        memory_free_bytes=free,
        video_decoder=f"FFmpeg {av.ffmpeg_version_info}",
    )


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine_memory() -> tuple[int | None, int | None]:
    """(available, total) bytes of the machine; None where the system does not tell."""
    if sys.platform == "win32" or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None, None
    page = os.sysconf("SC_PAGE_SIZE")
    available = page * os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else None
    return available, page * os.sysconf("SC_PHYS_PAGES")
