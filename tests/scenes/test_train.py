"""A stretch of training on the CPU: what it writes, how it goes on, and its optimizer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from wq_cli.scenes import model, train
from wq_cli.scenes.model import load
from wq_cli.scenes.optimizer import MuonAdamW, orthogonalise
from wq_cli.scenes.questions import FAMILIES

TINY = ("--device", "cpu", "--steps", "1", "--frames-per-step", "16", "--workers", "1", "--questions", "2")


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of one layer each, to save time."""

    def build_config(tokenizer: Any) -> Any:
        config = full(tokenizer)
        config.vision_config.num_hidden_layers = config.text_config.num_hidden_layers = 1
        config.text_config.layer_types = config.text_config.layer_types[:1]
        return config

    full = model.build_config
    monkeypatch.setattr(model, "build_config", build_config)


def stretch(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["train", *TINY, *options])
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    train.main()


@pytest.mark.usefixtures("shallow")
def test_a_stretch_writes_a_model_and_the_next_goes_on_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    stretch(monkeypatch, "--out", str(first))
    shown = capsys.readouterr().out
    assert "step 1" in shown and "AUC" in shown
    stretch(monkeypatch, "--out", str(second), "--resume", str(first), "--peak-rate", "0")

    stretches = json.loads((second / "training.json").read_text())["stretches"]
    assert [entry["steps"] for entry in stretches] == [1, 1]
    assert stretches[1]["curve"][-1]["step"] == 2
    assert [row["frames"] for row in stretches[1]["evaluation"]] == [16, 32, 100]
    assert stretches[1]["evaluation"][0]["families"].keys() == FAMILIES.keys()
    before, after = load(first)[0].state_dict(), load(second)[0].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_orthogonalised_matrices_keep_their_singular_vectors() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(3, 24, 40)
    result = orthogonalise(matrices).double()
    left, _, right = torch.linalg.svd(matrices.double(), full_matrices=False)
    inner = left.mT @ result @ right.mT  # diagonal when the singular vectors are the same
    values = inner.diagonal(dim1=1, dim2=2)
    assert (inner - torch.diag_embed(values)).abs().max() < 1e-4
    assert values.min() > 0.5 and values.max() < 1.3
    torch.testing.assert_close(orthogonalise(matrices.mT), orthogonalise(matrices).mT, rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    """One matrix inside `layers`, which Muon takes, one outside and a bias, which AdamW takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"inner": nn.Linear(8, 8)})])
        self.head = nn.Linear(8, 4)


def test_first_update_by_hand() -> None:
    torch.manual_seed(0)
    block = nn.ModuleDict({"model": Block()})
    before = {name: parameter.detach().clone() for name, parameter in block.named_parameters()}
    for parameter in block.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = MuonAdamW(block, torch.device("cpu"))
    optimizer.learning_rate.fill_(0.01)
    optimizer.step()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None
        decay = 1 - 0.01 * 0.05 if parameter.ndim == 2 else 1
        if ".layers." in name and parameter.ndim == 2:
            # With Nesterov the first direction is a multiple of the gradient, which normalisation takes away.
            step = orthogonalise(parameter.grad[None])[0] * 0.2 * 8**0.5
        else:
            step = parameter.grad.sign()  # AdamW's first step
        torch.testing.assert_close(parameter.detach(), before[name] * decay - 0.01 * step, rtol=1e-4, atol=1e-5)


def test_learning_rate_rises_and_falls_linearly() -> None:
    schedule = train.Schedule(train.Recipe(minutes=1, peak_rate=1.0, warm_up_part=0.1), resumed=False)
    assert [schedule.rate(at) for at in (0.0, 0.05, 0.1, 0.55, 1.0)] == pytest.approx([0.01, 0.5, 1.0, 0.5, 0.01])
