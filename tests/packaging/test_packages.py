"""The wheel holds what the tree holds, and nothing that gets in transformers' way (PyPI has a package `kernels`)."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def packages_of(folder: Path, name: str) -> set[str]:
    inits = folder.rglob("__init__.py")
    return {".".join([name, *init.parent.relative_to(folder).parts]) for init in inits}


def test_package_list_is_the_tree() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    tree = packages_of(ROOT / "wq_cli", "wq_cli") | packages_of(ROOT / "kernels" / "wq_kernels", "wq_kernels")
    assert set(settings["packages"]) == tree | {"wq_cli.profiles"}
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    # In a copy: setuptools leaves a build folder, and takes stale files from it the next time.
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in ("wq_cli", "kernels", "profiles"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), "."]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built).namelist()


def test_wheel_holds_the_data(wheel: list[str]) -> None:
    for name in (
        "wq_cli/profiles/demo.yaml",
        "wq_cli/profiles/demo.kvtuner.json",
        "wq_cli/scenes/assets/atlas.png",
        "wq_cli/scenes/assets/example.mp4",
        "wq_cli/scenes/weights/model.safetensors",
        "wq_cli/scenes/weights/tokenizer.json",
        "wq_kernels/layout.py",
    ):
        assert name in wheel


def test_wheel_has_no_top_level_kernels(wheel: list[str]) -> None:
    assert {name.split("/")[0] for name in wheel if ".dist-info" not in name} == {"wq_cli", "wq_kernels"}


@pytest.mark.parametrize("where", [ROOT, ROOT / "docs"])
def test_transformers_is_not_misled_by_the_folder(where: Path) -> None:
    """With the repository's root on the path, transformers must still see that the PyPI package is absent or real."""
    code = (
        "import sys, transformers.utils.import_utils as u, importlib.metadata as m\n"
        "try: m.version('kernels'); real = True\n"
        "except m.PackageNotFoundError: real = False\n"
        "sys.exit(0 if bool(u.is_kernels_available()) in (real, False) else 1)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=where, check=True, capture_output=True)


def test_nothing_is_named_like_a_library() -> None:
    names = {path.stem for folder in ("wq_cli", "kernels") for path in (ROOT / folder).rglob("*.py")}
    assert not names & {"triton", "kernels", "torch", "av"}
    assert importlib.util.find_spec("wq_kernels") is not None
