"""What is said about an answer besides itself: words the model does not know, and answers that are none (B17)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_videos import make
from tiny_models import llava_onevision

from wq_cli import describe
from wq_cli.app import main


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("clip") / "a.mp4", n=6))


@pytest.fixture(scope="module")
def broken_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose head gives every token the same chance, as a wrong number type does: it says one token for ever."""
    from transformers import LlavaOnevisionForConditionalGeneration

    folder = llava_onevision(tmp_path_factory.mktemp("model"))
    model = LlavaOnevisionForConditionalGeneration.from_pretrained(folder)
    model.get_output_embeddings().weight.data.zero_()
    model.save_pretrained(folder)
    return folder


def test_b17_an_answer_of_one_token_for_ever_is_flagged_after_it(
    clip: str, broken_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["ask", clip, "what happens?", "--model", str(broken_model), "--frames", "2", "--max-new-tokens"]
    assert main([*line, "16"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith(describe.STUCK_NOTICE), "behind the line on the answer's speed"
    assert said.count(describe.STUCK_NOTICE) == 1
    assert main([*line, "8"]) == 0
    assert describe.STUCK_NOTICE not in " ".join(capsys.readouterr().err.split()), "too short to tell"


@settings(deadline=None)
@given(phrase=st.lists(st.integers(0, 9), min_size=1, max_size=8), start=st.lists(st.integers(0, 9), max_size=6))
def test_stuck_is_a_phrase_said_over_and_over(phrase: list[int], start: list[int]) -> None:
    assert describe.is_stuck([*start, *phrase * 12])
    assert not describe.is_stuck([*phrase * 12, 10, 11])
    assert not describe.is_stuck(list(range(100)))


def test_an_enumeration_is_not_stuck() -> None:
    count = [token for number in range(20) for token in (100 + number, 1, 2, 3)]  # "1. a dog, 2. a dog, ..."
    assert not describe.is_stuck(count)


def test_words_that_the_model_does_not_know_are_named(
    clip: str, broken_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [clip, "--model", str(broken_model), "--frames", "2"]
    assert main(["ask", clip, "is there a zebra, a zebra or a Quagga?", *line[1:], "--max-new-tokens", "1"]) == 0
    assert "the model does not know `zebra`, `or`, `Quagga`" in " ".join(capsys.readouterr().err.split())
    assert main(["inspect", *line, "--prompt", "a dog", "--prompt", "a zebra"]) == 0
    assert "the model does not know `zebra`" in " ".join(capsys.readouterr().err.split())
    assert main(["ask", clip, "is there a dog?", *line[1:], "--max-new-tokens", "1"]) == 0
    assert "does not know" not in capsys.readouterr().err


def test_the_demo_model_names_what_it_does_not_know(clip: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", clip, "--prompt", "a DOG chases a photosynthesis", "--frames", "2"]) == 0
    assert "the model does not know `photosynthesis`" in " ".join(capsys.readouterr().err.split())
