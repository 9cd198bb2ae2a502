"""The kernels compile for GPUs: what the interpreter runs, the compiler may refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("compile_kernels.py")


@pytest.mark.skipif(sys.platform != "linux", reason="Triton's assembler comes for Linux")
@pytest.mark.parametrize(("capability", "widths"), [(80, ["8,4", "4,2"]), (90, ["16,16", "4,4", "2,2"])])
def test_kernels_compile(capability: int, widths: list[str], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, str(SCRIPT), str(capability), *widths]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    sizes = [int(row.split()[1]) for row in done.stdout.splitlines()]
    assert len(sizes) == 11
    assert min(sizes) > 1000
