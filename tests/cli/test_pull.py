"""`wq pull` as a process of its own, with huggingface_hub's own code, against a server that speaks the hub's API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, TOKEN, Hub, oid, serving
from small_videos import make
from tiny_models import llava_onevision

REPOSITORY = "some/model"
# huggingface_hub hands on what it receives in chunks of this size: what comes after the last whole one is lost.
CHUNK_BYTES = 10 * 2**20
CUT_BYTES = CHUNK_BYTES + 2**20
# `wq` in a process that may open no socket, for what must work offline.
NO_SOCKETS = """
import socket, sys
def refuse(*_):
    raise SystemExit("a socket was opened")
socket.socket.connect = socket.getaddrinfo = refuse
from wq_cli.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny real checkpoint in shards, beside files that must never be fetched."""
    from transformers import LlavaOnevisionForConditionalGeneration

    folder = llava_onevision(tmp_path_factory.mktemp("model"), heads=8, head_dim=64)
    model = LlavaOnevisionForConditionalGeneration.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="16MB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    for name in ("pytorch_model.bin", "modeling_own.py", "onnx/model.json", "consolidated.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"never")
    return folder


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[Hub]:
    with serving(Hub({REPOSITORY: checkpoint})) as running:
        yield running


def environment(hub: Hub | None, home: Path, **more: str) -> dict[str, str]:
    unwanted = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT")
    clean = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**clean, "HF_HOME": str(home), **({"HF_ENDPOINT": hub.address} if hub else {}), **more}


def wq(hub: Hub | None, home: Path, *arguments: str, code: str | None = None, **more: str) -> tuple[int, dict]:
    """Exit code and JSON document of one `wq` process."""
    start = ["-c", code] if code else ["-m", "wq_cli"]
    done = subprocess.run(
        [sys.executable, *start, *arguments, "--json"],
        capture_output=True, text=True, timeout=120, env=environment(hub, home, **more),
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_pull_then_ask_without_a_network(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    code, pulled = wq(hub, tmp_path, "pull", REPOSITORY)
    assert (code, pulled["revision"]) == (0, COMMIT)
    folder = Path(pulled["path"])
    for file in folder.iterdir():
        assert file.read_bytes() == (checkpoint / file.name).read_bytes()
    assert {file.suffix for file in folder.iterdir()} == {".json", ".jinja", ".safetensors"}
    assert not any(name in path for _, path, _ in hub.heard for name in (".bin", ".py", "onnx", "consolidated"))
    video = str(make(tmp_path / "a.mp4", n=8))
    asked = ["ask", video, "what happens ?", "--model", REPOSITORY, "--frames", "2", "--max-new-tokens", "2"]
    code, answer = wq(hub, tmp_path, *asked, code=NO_SOCKETS)
    assert (code, answer["model"]["model_type"]) == (0, "llava_onevision")


def test_a_second_pull_fetches_nothing_again(hub: Hub, tmp_path: Path) -> None:
    wq(hub, tmp_path, "pull", REPOSITORY)
    hub.heard.clear()
    assert wq(hub, tmp_path, "pull", REPOSITORY)[0] == 0
    assert hub.fetched(".safetensors") == hub.fetched("/tokenizer.json") == []


@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_a_cut_connection_goes_on_where_it_stopped(
    hub: Hub, checkpoint: Path, tmp_path: Path, ignores_ranges: bool
) -> None:
    hub.ignores_ranges = ignores_ranges
    hub.cut_after = [CUT_BYTES]
    code, pulled = wq(hub, tmp_path, "pull", REPOSITORY)
    assert code == 0
    assert hub.fetched(".safetensors")[:2] == [None, f"bytes={CHUNK_BYTES}-"]
    for file in Path(pulled["path"]).glob("*.safetensors"):
        assert file.read_bytes() == (checkpoint / file.name).read_bytes()


def test_a_run_that_was_ended_goes_on_in_the_next(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    hub.cut_after = [CUT_BYTES] + [0] * 50
    command = [sys.executable, "-m", "wq_cli", "pull", REPOSITORY]
    process = subprocess.Popen(command, env=environment(hub, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(hub.fetched(".safetensors")) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said.decode().split()) == (130, ["error:", "interrupted"])
    half = wq(hub, tmp_path, "ask", str(make(tmp_path / "a.mp4", n=8)), "q", "--model", REPOSITORY, "--offline")
    assert half[0] == 1 and half[1]["error"] == f"`{REPOSITORY}` is not on this computer and the hub cannot be reached"
    hub.cut_after = []
    hub.heard.clear()
    code, pulled = wq(hub, tmp_path, "pull", REPOSITORY)
    assert code == 0 and hub.fetched(".safetensors")[0] == f"bytes={CHUNK_BYTES}-"
    for file in Path(pulled["path"]).glob("*.safetensors"):
        assert file.read_bytes() == (checkpoint / file.name).read_bytes()
    assert not list(tmp_path.rglob("*.incomplete"))


def test_two_at_once_fetch_each_file_once(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wq_cli", "pull", REPOSITORY, "--quiet"]
    how = {"env": environment(hub, tmp_path), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command, **how) for _ in range(2)]
    folders = {process.communicate(timeout=60) for process in both}
    assert [process.returncode for process in both] == [0, 0]
    ((folder, said),) = folders
    assert said == b""
    assert len(hub.fetched(".safetensors")) == len(list(checkpoint.glob("model-*.safetensors")))
    for file in Path(folder.decode().strip()).glob("*.safetensors"):
        assert file.read_bytes() == (checkpoint / file.name).read_bytes()


def test_damaged_pieces_are_thrown_away(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    shard = min(checkpoint.glob("model-*.safetensors"))
    blobs = tmp_path / "hub" / f"models--{REPOSITORY.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{oid(shard)}.incomplete").write_bytes(b"x" * 1000)
    code, failure = wq(hub, tmp_path, "pull", REPOSITORY)
    assert (code, failure["error"]) == (1, "a file that was downloaded in pieces is damaged")
    assert wq(hub, tmp_path, "pull", REPOSITORY)[0] == 0


def test_the_pinned_revision_of_a_profile(hub: Hub, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    text = f"name: mine\ndescription: for tests\nmodel: {REPOSITORY}\nrevision: "
    profile.write_text(text + "v1\n")
    code, pulled = wq(hub, tmp_path, "pull", str(profile))
    assert (code, pulled["revision"], pulled["profile"]) == (0, COMMIT, str(profile))
    assert any("/revision/v1" in path for _, path, _ in hub.heard)
    assert not any("/main" in path for _, path, _ in hub.heard)
    profile.write_text(text + "v9\n")
    code, failure = wq(hub, tmp_path, "pull", str(profile))
    assert (code, failure["error"]) == (1, f"`{REPOSITORY}` has no revision `v9`")
    assert wq(hub, tmp_path, "pull", str(profile), "--revision", "main")[0] == 2


def test_a_pin_is_the_commit_that_was_fetched(hub: Hub, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    written = f"# mine\nname: mine\ndescription: for tests\nmodel: {REPOSITORY}\n"
    profile.write_text(written)
    assert wq(hub, tmp_path, "pull", str(profile), "--pin")[0] == 0
    assert profile.read_text() == f"{written}revision: {COMMIT}\n"
    hub.heard.clear()
    assert wq(hub, tmp_path, "pull", str(profile))[0] == 0
    assert not any("/main" in path for _, path, _ in hub.heard)
    profile.write_text(f"{written}revision: v9\n")
    assert wq(hub, tmp_path, "pull", str(profile), "--revision", "v1", "--pin")[0] == 0
    assert profile.read_text() == f"{written}revision: {COMMIT}\n"
    code, failure = wq(hub, tmp_path, "pull", REPOSITORY, "--pin")
    assert (code, failure["error"]) == (2, "`--pin` writes into a profile")


def test_nothing_is_pinned_that_was_not_fetched(hub: Hub, tmp_path: Path) -> None:
    """The profile is a packaged one, whose repository this hub does not have."""
    code, _ = wq(hub, tmp_path, "pull", "qwen2-vl-2b", "--pin", WQ_CONFIG_HOME=str(tmp_path / "config"))
    assert code == 1
    assert not list((tmp_path / "config").rglob("*.yaml"))


def test_each_refusal_has_its_own_line(hub: Hub, checkpoint: Path, tmp_path: Path) -> None:
    pickled, other = tmp_path / "pickled", tmp_path / "other"
    for folder, model_type in ((pickled, "llava_onevision"), (other, "bert")):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    hub.models |= {"closed/a": checkpoint, "closed/b": checkpoint, "of/pickles": pickled, "of/others": other}
    hub.models["no/config"] = tmp_path / "empty"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "README.md").write_text("nothing")
    hub.gated = {"closed/a": 401, "closed/b": 403}
    expected = {
        "closed/a": ("is given only to those who were granted access", "then `hf auth login`"),
        "closed/b": ("is given only to those who were granted access", "with your account"),
        "nope/nope": ("there is no model `nope/nope` on the hub", "check the spelling"),
        "llava-hf/llava-onevision-qwen2-7b-ov-fh": ("there is no model", "`llava-hf/llava-onevision-qwen2-7b-ov-hf`?"),
        "of/pickles": ("`of/pickles` has no safetensors weights", "wq reads no other kind"),
        "of/others": ("models of type `bert` are not supported", "supported: llava_onevision"),
        "no/config": ("`no/config` has no `config.json` of transformers", None),
    }
    home = tmp_path / "home"
    for source, (message, hint) in expected.items():
        code, failure = wq(hub, home, "pull", source)
        assert code == 1 and message in failure["error"], (source, failure)
        assert hint is None or hint in failure["hint"], (source, failure)
    assert hub.fetched(".safetensors") == []


def test_a_token_opens_a_gated_model_and_goes_nowhere_else(hub: Hub, tmp_path: Path) -> None:
    hub.gated, hub.stores_elsewhere, hub.cut_after = {REPOSITORY: 401}, True, [CUT_BYTES]
    assert wq(hub, tmp_path, "pull", REPOSITORY, HF_TOKEN="hf_other")[0] == 1
    assert wq(hub, tmp_path, "pull", REPOSITORY, HF_TOKEN=TOKEN)[0] == 0
    stored = [path for _, path, _ in hub.heard if path.startswith("/stored/")]
    assert len(stored) > 1 and f"bytes={CHUNK_BYTES}-" in hub.fetched(".safetensors")
    assert not any(path in stored for path, _ in hub.tokens)
    assert any(path.startswith(f"/{REPOSITORY}/resolve") for path, _ in hub.tokens)


def test_no_hub_at_all(tmp_path: Path) -> None:
    expected = (1, f"`{REPOSITORY}` is not on this computer and the hub cannot be reached")
    code, failure = wq(None, tmp_path, "pull", REPOSITORY, HF_ENDPOINT="http://127.0.0.1:9")
    assert (code, failure["error"]) == expected
    code, failure = wq(None, tmp_path, "pull", REPOSITORY, code=NO_SOCKETS, HF_HUB_OFFLINE="1")
    assert (code, failure["error"]) == expected


def test_the_folder_is_one_line_for_other_programs(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / ("long " * 30)
    command = [sys.executable, "-m", "wq_cli", "pull", REPOSITORY]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(hub, home), timeout=60)
    folder = home / "hub" / "models--some--model" / "snapshots" / COMMIT
    assert (done.returncode, done.stdout) == (0, f"{folder}\n")
    assert done.stderr.splitlines()[-1].endswith(f'ready: wq ask VIDEO "what happens?" --model {REPOSITORY}')


def test_what_cannot_be_pulled(tmp_path: Path) -> None:
    code, failure = wq(None, tmp_path, "pull", "demo")
    assert (code, failure["error"]) == (
        2,
        "the model of profile `demo` is inside this package: there is nothing to pull",
    )
    code, failure = wq(None, tmp_path, "pull", "llava-onevison-7b")
    assert code == 1 and "did you mean `llava-onevision-7b`" in failure["hint"]
    code, failure = wq(None, tmp_path, "pull", "")
    assert (code, failure["error"]) == (1, "there is no profile ``")
