"""Which implementation runs and what it says about it."""

import os
import subprocess
import sys

import pytest
import torch

from wq_kernels import choose_backend, use_backend

CPU = torch.device("cpu")


def test_cpu_tensors_run_in_pytorch() -> None:
    backend = choose_backend(CPU, torch.float32)
    assert backend.name == "torch"
    assert "not on an NVIDIA GPU" in backend.reason


def test_request_for_triton_that_cannot_be_met_is_an_error() -> None:
    with use_backend("triton"), pytest.raises(RuntimeError, match="the tensors are on cpu"):
        choose_backend(CPU, torch.float16)


def test_request_ends_with_its_block() -> None:
    with use_backend("torch"):
        assert choose_backend(CPU, torch.float16).reason == "asked for"
        with pytest.raises(RuntimeError), use_backend("triton"):
            choose_backend(CPU, torch.float16)
        assert choose_backend(CPU, torch.float16).reason == "asked for"
    assert choose_backend(CPU, torch.float16).reason != "asked for"


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match="auto, triton, torch, not cuda"), use_backend("cuda"):
        pass


def test_missing_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose_backend(torch.device("cuda"), torch.float16).reason == "Triton is not installed"


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "torch"), ((8, 0), "triton"), ((9, 0), "triton")])
def test_old_cards_run_in_pytorch(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    backend = choose_backend(torch.device("cuda"), torch.float16)
    assert backend.name == name
    assert ("7.5" in backend.reason) == (name == "torch")
    assert choose_backend(torch.device("cuda"), torch.float32).name == "torch"


def test_interpreter_runs_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_backend(CPU, torch.float16).name == "torch"
    with use_backend("triton"):
        assert choose_backend(CPU, torch.float16).name == "triton"
        with pytest.raises(RuntimeError, match="interpreter does not take"):
            choose_backend(CPU, torch.bfloat16)


def test_package_works_without_triton() -> None:
    code = """
import sys
sys.modules["triton"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find(name, *rest)
import torch, wq_kernels
x = torch.randn(1, 2, 64, 16)
block = wq_kernels.pack(x, torch.arange(64).unsqueeze(0), bits=4, window=32)
out = wq_kernels.attend(x[:, :, :1], [wq_kernels.Segment(block, block)], x, x, 5, scaling=0.25)
assert out.isfinite().all() and wq_kernels.unpack(block, x.dtype).shape == x.shape
print(wq_kernels.choose_backend(x.device, x.dtype).reason)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Triton is not installed"
