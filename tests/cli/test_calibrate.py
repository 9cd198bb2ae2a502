"""`wq calibrate`: what it measures against a plain forward in float64, and that later runs use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_videos import make
from tiny_models import llava_onevision

from wq_cli import calibration, profile
from wq_cli.app import main
from wq_cli.models import loading

HEAD = "# my own words\nname: mine\ndescription: for tests # and a remark\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava_onevision(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("clips")
    return [str(make(place / f"{n}.mp4", n=n)) for n in (6, 9)]


@pytest.fixture
def mine(folder: Path, config_home: Path) -> Path:
    path = config_home / "profiles" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(f"{HEAD}model: {folder}\nsensitivity:\n- 0.5\n- 0.5\n- 0.5\nframes: 6\n")
    return path


def reference(folder: Path, clip: str) -> list[float]:
    """Eq 9 from the streams that a plain forward of transformers' decoder has, in float64."""
    from wq_cli import video
    from wq_cli.config import Sampling

    model = loading.load(str(folder), torch.device("cpu"), "auto")
    read = video.read(clip, Sampling(), default_frames=6)
    prompt = model.prompt(calibration.QUESTION, model.encode(read.frames, read.pts_seconds))
    decoder = model.decoder.double()
    streams: dict[str, list[torch.Tensor]] = {"before": [], "after": []}

    def keep(name: str) -> Any:
        return lambda module, args, kwargs: streams[name].append(args[0] if args else kwargs["hidden_states"])

    for layer in decoder.layers:
        layer.register_forward_pre_hook(keep("before"), with_kwargs=True)
        layer.post_attention_layernorm.register_forward_pre_hook(keep("after"), with_kwargs=True)
    with torch.no_grad():
        decoder(inputs_embeds=prompt.embeds[None].double())
    pairs = zip(streams["before"], streams["after"], strict=True)
    return [float(torch.cosine_similarity(b, a, dim=-1).mean().clamp(0, 1)) for b, a in pairs]


def test_it_is_equation_9_averaged_over_the_clips(
    mine: Path, folder: Path, clips: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--profile", "mine", *clips, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    per_clip = np.array([reference(folder, clip) for clip in clips])
    assert np.abs(np.array(shown["measured"]["sensitivity"]) - per_clip.mean(axis=0)).max() < 2e-4
    assert shown["largest_spread"] == pytest.approx(np.ptp(per_clip, axis=0).max(), abs=2e-4)
    assert (shown["path"], shown["clips"]) == (str(mine), clips)
    text = mine.read_text()
    assert text.startswith(HEAD) and text.count("sensitivity") == 1 and "frames: 6" in text
    assert profile.load("mine").sensitivity == tuple(shown["measured"]["sensitivity"])
    assert list(mine.parent.iterdir()) == [mine]


def wq(*arguments: str) -> dict[str, Any]:
    """The JSON document of a `wq` process."""
    done = subprocess.run([sys.executable, "-m", "wq_cli", *arguments, "--json"], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_later_runs_use_it(config_home: Path) -> None:
    """A packaged profile, rendered scenes, real processes: the copy in the user's folder comes first from then on."""
    measured = wq("calibrate", "--profile", "demo", "--frames", "8")
    assert measured["path"] == str(config_home / "profiles" / "demo.yaml")
    assert len(measured["clips"]) == len(calibration.SCENE_SEEDS)
    example = Path(calibration.__file__).parent / "scenes" / "assets" / "example.mp4"
    asked = wq("ask", str(example), "what happens?", "--frames", "8", "--max-new-tokens", "1")
    assert [layer["sensitivity"] for layer in asked["layers"]] == measured["measured"]["sensitivity"]
    assert asked["model"]["is_demo"] is True


def test_a_model_without_a_profile_is_refused(clips: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", clips[0], "--model", "some/model"]) == 2
    assert "leave `--model` away" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_what_cannot_be_written_is_told_before_the_work(
    mine: Path, clips: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(loading, "open_checkpoint", lambda *_, **__: pytest.fail("a model was opened"))
    before = mine.read_text()
    assert main(["calibrate", "--profile", "mine", *clips]) == 1
    assert f"cannot write `{mine}`: permission denied" in capsys.readouterr().err
    assert mine.read_text() == before
