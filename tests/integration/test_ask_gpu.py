"""The whole command on a GPU: what it says there is what it says on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from wq_cli.app import main
from wq_cli.models import loading
from wq_cli.scenes.make import make

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("policy", ["windowquant", "focus", "fp16"])
def test_answer_is_that_of_the_cpu(policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = tmp_path / "scene.mp4"
    make(video, seed=3, seconds=8.0)
    answers = {}
    for asked in ("cpu", "cuda", "auto"):
        assert main(["ask", str(video), "what happens?", "--policy", policy, "--device", asked, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["model"]["device"] == ("cpu" if asked == "cpu" else f"cuda:{torch.cuda.current_device()}")
        answers[asked] = found["answer"]
    assert answers["cuda"] == answers["auto"] == answers["cpu"]


@pytest.mark.parametrize("asked", ["auto", "cuda"])
def test_a_chosen_gpu_has_a_number(asked: str) -> None:
    assert loading.choose_device(asked) == torch.device("cuda", torch.cuda.current_device())
