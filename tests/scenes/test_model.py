"""The saved model is whole, small enough, and what transformers' own classes load; the shipped one answers."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoProcessor, LlavaOnevisionForConditionalGeneration

from wq_cli.config import Sampling
from wq_cli.scenes import ASSETS, WEIGHTS, model
from wq_cli.scenes.batches import Packer, Shape
from wq_cli.scenes.evaluate import open_objective
from wq_cli.scenes.questions import FAMILIES, Question
from wq_cli.scenes.words import vocabulary
from wq_cli.scenes.world import generate
from wq_cli.video import read


@pytest.fixture(scope="module")
def saved(untrained: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    model.save(*untrained, folder, "{}\n")
    return folder


def test_weights_survive_as_fp16(untrained: tuple[Any, Any], saved: Path) -> None:
    loaded, tokenizer = model.load(saved)
    before, after = untrained[0].state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert torch.equal(weight.half().float(), after[name]), name
    assert tokenizer.get_vocab() == untrained[1].get_vocab()


@pytest.mark.parametrize("folder", ["saved", "shipped"])
def test_every_weight_is_stored_once_and_all_fit(folder: str, saved: Path, untrained: tuple[Any, Any]) -> None:
    path = (saved if folder == "saved" else WEIGHTS) / "model.safetensors"
    assert path.stat().st_size <= 16 * 1024 * 1024
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    assert {entry["dtype"] for entry in tensors} == {"F16"}
    distinct = sum(weight.numel() for weight in untrained[0].parameters())
    assert path.stat().st_size == 8 + length + 2 * distinct


def test_nothing_is_written_of_weights_that_are_not_finite(tmp_path: Path) -> None:
    broken, tokenizer = model.build(0)
    with torch.no_grad():
        broken.model.image_newline[0] = 1e6  # finite in float32 only
    with pytest.raises(ValueError, match="not finite"):
        model.save(broken, tokenizer, tmp_path, "{}")
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_of_weights_that_are_too_large(
    untrained: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_BYTES", 10**6)
    with pytest.raises(ValueError, match="more than 1000000"):
        model.save(*untrained, tmp_path, "{}")
    assert not list(tmp_path.iterdir())


def test_words_are_tokens(untrained: tuple[Any, Any]) -> None:
    tokenizer = untrained[1]
    tokens = tokenizer.tokenize("Is there a RED star, or 12 zebras?")
    assert tokens == ["is", "there", "a", "red", "star", ",", "or", "12", "<unk>", "?"]
    told = "first a cat jumps. then three owls move left."
    assert tokenizer.decode(tokenizer(told)["input_ids"]) == told


def test_processor_writes_the_chat_and_squashes_frames(saved: Path) -> None:
    processor = AutoProcessor.from_pretrained(saved)
    chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "what happens?"}]}]
    prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
    assert prompt == "<|im_start|>user\n<video>what happens?<|im_end|>\n<|im_start|>assistant\n"
    frames = torch.full((4, 3, 90, 160), 64, dtype=torch.uint8)
    inputs = processor(text=prompt, videos=[frames], return_tensors="pt")
    video_token = processor.tokenizer.convert_tokens_to_ids("<video>")
    assert int((inputs["input_ids"] == video_token).sum()) == 4 * 16 + 1
    assert inputs["pixel_values_videos"].shape == (1, 4, 3, 64, 64)
    torch.testing.assert_close(inputs["pixel_values_videos"], torch.full((1, 4, 3, 64, 64), 64 / 255 * 2 - 1))


def test_shipped_model_knows_the_words_of_this_world() -> None:
    """Worlds or questions that change the vocabulary need a model trained anew."""
    tokenizer = AutoProcessor.from_pretrained(WEIGHTS).tokenizer
    assert sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__) == list(vocabulary())
    shipped = LlavaOnevisionForConditionalGeneration.from_pretrained(WEIGHTS, dtype=torch.float16)
    assert shipped.generation_config.do_sample is False


def test_shipped_model_answers_the_example() -> None:
    objective, packer = open_objective(WEIGHTS, torch.device("cpu"))
    told = json.loads((ASSETS / "example.json").read_text())["questions"]
    asked = [Question(entry["family"], entry["text"], entry["answer"], ()) for entry in told]
    clip = read(ASSETS / "example.mp4", Sampling(), default_frames=32)
    pixels = AutoProcessor.from_pretrained(WEIGHTS).video_processor([clip.frames], return_tensors="pt")
    shape = Shape(1, 32, 245, len(asked))
    arrays = packer.batch([(generate(0), asked)], shape)  # only the questions are used
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    with torch.inference_mode():
        right = objective(batch, shape, pixels["pixel_values_videos"][0]).right[0, 1:]
    wrong = [question.text for question, hit in zip(asked, right.tolist(), strict=True) if not hit]
    assert len(asked) >= 10
    assert len(wrong) <= 1, wrong


def test_shipped_record_meets_the_goals() -> None:
    record = json.loads((WEIGHTS / "training.json").read_text())
    rows = {row["frames"]: row for row in record["stretches"][-1]["evaluation"]}
    for frames in (16, 32, 100):
        assert rows[frames]["questions"] >= 2000
        assert rows[frames]["accuracy"] >= 0.9
        assert rows[frames]["families"].keys() == FAMILIES.keys()
        assert min(rows[frames]["families"].values()) >= 0.75
        assert rows[frames]["auc"] >= 0.9


def test_packer_leaves_out_what_does_not_fit(untrained: tuple[Any, Any]) -> None:
    long = Question("FA", "is it " * 20 + "?", "yes", ("yes", "no"))
    packer = Packer(untrained[1])
    batch = packer.batch([(generate(0), [long, long, long])], Shape(1, 8, 100, 3))
    # 41 typed tokens, 3 before the answer, the answer and its end: two of 46 fit 100.
    assert batch["family"][0].tolist() == [list(FAMILIES).index("FA")] * 2 + [-1]
    assert (batch["segment"][0] == -1).sum() == 8


def test_model_card_tells_what_the_record_says() -> None:
    path = Path(__file__).parents[2] / "docs" / "make_demo_results.py"
    spec = importlib.util.spec_from_file_location("make_demo_results", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == module.TARGET.read_text(encoding="utf-8"), "run `python docs/make_demo_results.py`"
