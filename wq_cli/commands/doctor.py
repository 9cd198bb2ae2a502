"""`wq doctor`: what wq finds on this machine and what it would choose."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wq_cli import __version__
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.config import Runtime

if TYPE_CHECKING:
    from rich.table import Table

    from wq_cli.fit import ProfileFit

EXAMPLES = """\
[bold]Examples[/]
$ wq doctor
$ wq doctor --device cuda:1 --json"""
_PACKAGES = ("torch", "transformers", "triton", "torchvision", "av", "numpy", "pillow", "rich", "typer")
_EXTRAS = ("accelerate", "bitsandbytes")
_FITS = {"full": "yes", "4bit": "with 4bit", "no": "no", None: "unknown"}


@dataclass(frozen=True)
class DoctorResult:
    """What `wq doctor` prints.

    Attributes:
        versions: Package to version, None where it is not installed.
        extras: The same of packages that only some options need.
        backend_reason: Why that implementation of the kernels.
        memory_total_bytes, memory_free_bytes: Of the device, or of the machine for a CPU (None when unknown).
    """

    command: str
    versions: dict[str, str | None]
    extras: dict[str, str | None]
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
    fits: tuple[ProfileFit, ...]


@grouped
def doctor(*, runtime: Runtime, output: Output) -> None:
    """Show versions, the device, the backend and why, memory, and which profiles fit."""
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
            "extras": ", ".join(f"{name} {found or 'not installed'}" for name, found in result.extras.items()),
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
        screen.result("")
        screen.result(_fit_table(result.fits))
        if any(row.fits == "4bit" for row in result.fits):
            screen.say("with 4bit: it fits with `--weights 4bit`")


def _fit_table(fits: tuple[ProfileFit, ...]) -> Table:
    from rich import box
    from rich.table import Table

    from wq_cli.report.format import size

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("profile", no_wrap=True)
    for heading in ("weights", "in 4 bits", "KV of a frame", "frames"):
        table.add_column(heading, justify="right")
    for heading in ("fits here", "pulled"):
        table.add_column(heading)
    for row in fits:
        sizes = (row.weight_bytes, row.weight_bytes_4bit, row.kv_bytes_per_frame)
        shown = ("" if count is None else size(count) for count in sizes)
        table.add_row(row.name, *shown, str(row.frames), _FITS[row.fits], "yes" if row.is_here else "")
    return table


def _examine(runtime: Runtime) -> DoctorResult:
    """Ask torch, the kernels and the decoder.

    Raises:
        WqError: The device or the backend that was asked for cannot be used.
    """
    import av
    import torch

    import wq_kernels
    from wq_cli import fit, profile
    from wq_cli.errors import DeviceError
    from wq_cli.models.loading import choose_device, choose_dtype, hush, memory_of

    hush()
    device = choose_device(runtime.device)
    dtype = choose_dtype(runtime.dtype, device, None)
    try:
        with wq_kernels.use_backend(runtime.backend):
            backend = wq_kernels.choose_backend(device, dtype)
    except RuntimeError as error:
        raise DeviceError(str(error), "leave `--backend` away to fall back to PyTorch") from error
    free, total = memory_of(runtime.device)
    return DoctorResult(
        command="doctor",
        versions={
            "wq": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        extras={name: _version(name) for name in _EXTRAS},
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
        fits=tuple(fit.examine(one, dtype, free) for one in profile.valid()),
    )


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
