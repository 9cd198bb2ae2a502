"""E12, E13, B17, D7: where a model comes from, and one clear line for each way in which it cannot be had."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_server import Hub, serving
from tiny_models import llava_onevision

from wq_cli.errors import ModelError
from wq_cli.models import loading

CPU = torch.device("cpu")

# Loads each model named on the command line with real libraries; one line of JSON each.
LOAD = """
import json, socket, sys
import torch
from wq_cli.errors import WqError
from wq_cli.models import loading
if "--no-sockets" in sys.argv:
    def refuse(*_):
        print(json.dumps("a socket was opened"), flush=True)
        raise SystemExit(1)
    socket.socket.connect = socket.getaddrinfo = refuse
for name in sys.argv[1:]:
    if not name.startswith("--"):
        try:
            print(json.dumps(loading.load(name, torch.device("cpu"), "auto").model_type))
        except WqError as error:
            print(json.dumps([error.message, error.hint]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava_onevision(tmp_path_factory.mktemp("model"))


def load_all(home: Path, *arguments: str, **environment: str) -> list[object]:
    """What came of each name, in a process whose hub cache is `home`."""
    names = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", LOAD, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**clean, "HF_HOME": str(home), **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_e12_offline_opens_no_socket(folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    cached, missing = load_all(tmp_path, "some/model", "other/model", "--no-sockets", HF_HUB_OFFLINE="1")
    assert cached == "llava_onevision"
    assert missing == [
        "`other/model` is not on this computer and the hub cannot be reached",
        "check the network, and whether `--offline` or HF_HUB_OFFLINE is set",
    ]


def test_e13_missing_folder_misspelt_and_gated_are_told_apart(folder: Path, tmp_path: Path) -> None:
    with serving(Hub({"some/model": folder, "gated/model": folder}, gated={"gated/model": 403})) as hub:
        sources = ("./nope", "nope/nope", "gated/model", "/no/such/nope", "some/model")
        found = load_all(tmp_path, *sources, HF_ENDPOINT=hub.address)
    assert found == [
        ["`./nope` is not a model folder", "a model folder holds a `config.json`"],
        ["there is no model `nope/nope` on the hub", "check the spelling (a private one needs `hf auth login`)"],
        [
            "`gated/model` is given only to those who were granted access",
            "ask for it at https://huggingface.co/gated/model with your account",
        ],
        ["`/no/such/nope` is not a model folder", "a model folder holds a `config.json`"],
        "llava_onevision",  # downloaded on first use
    ]
    seen = [path for _, path, _ in hub.heard]
    assert any("/nope/nope" in path for path in seen)
    assert not any("such" in path or "./" in path for path in seen), "what looks like a path is never asked for"


def test_b17_no_chat_template(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="has no chat template"):
        loading.load(str(copy), CPU, "auto")


def test_a_type_of_model_that_is_not_supported(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    (copy / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="models of type `bert` are not supported"):
        loading.load(str(copy), CPU, "auto")


def test_weights_that_would_run_code_are_not_read(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    (weights,) = copy.glob("*.safetensors")
    torch.save({}, copy / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ModelError, match="cannot be loaded"):
        loading.load(str(copy), CPU, "auto")


def test_half_a_file_of_weights(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    (weights,) = copy.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        loading.load(str(copy), CPU, "auto")


@pytest.mark.parametrize(
    ("ending", "is_refused"),
    [("layers.1.mlp.up_proj.weight", True), ("image_newline", True), ("post_layernorm.weight", False)],
)
def test_weights_that_are_missing_are_not_made_up(folder: Path, tmp_path: Path, ending: str, is_refused: bool) -> None:
    """transformers fills them with random numbers; of a tower some checkpoints of the hub lack what is never used."""
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(folder, tmp_path / "model")
    (weights,) = copy.glob("*.safetensors")
    held = load_file(weights)
    (key,) = (name for name in held if name.endswith(ending))
    save_file({name: tensor for name, tensor in held.items() if name != key}, weights, {"format": "pt"})
    if is_refused:
        with pytest.raises(ModelError, match=rf"lacks weights: `[\w.]*{ending}` and 0 more"):
            loading.load(str(copy), CPU, "auto")
    else:
        assert loading.load(str(copy), CPU, "auto").model_type == "llava_onevision"


def test_packages_that_a_processor_needs_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def lacks(*_: object, **__: object) -> None:
        raise ImportError("SmolVLMProcessor requires the num2words library\nbut it was not found")

    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lacks)
    with pytest.raises(ModelError, match=r"requires the num2words library$"):
        loading.load(str(folder), CPU, "auto")


@pytest.mark.parametrize(
    ("capability", "stored", "expected"),
    [
        ((7, 5), torch.bfloat16, torch.float16),
        ((7, 5), None, torch.float16),
        ((8, 0), torch.bfloat16, torch.bfloat16),
        ((9, 0), torch.float16, torch.float16),
    ],
)
def test_d7_no_bfloat16_before_sm80(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], stored: torch.dtype | None, expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert loading.choose_dtype("auto", torch.device("cuda"), stored) == expected
    assert loading.choose_dtype("bfloat16", torch.device("cuda"), stored) == (
        torch.float16 if capability < (8, 0) else torch.bfloat16
    )
    for asked, meant in (("auto", stored or torch.bfloat16), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        notice = loading.dtype_notice(asked, torch.device("cuda"), stored)
        assert (notice is not None) == (capability < (8, 0) and meant == torch.bfloat16)
        assert notice is None or notice.startswith("`cuda` has no bfloat16: float16 is used")
