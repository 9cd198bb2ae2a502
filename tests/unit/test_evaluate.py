"""`wq eval` on a small folder of videos: scores against transformers, what is skipped, and runs that were cut."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_videos
import torch
from tiny_models import llava_onevision

from wq_cli import engine, recorded, video
from wq_cli.bench.evaluate import evaluate, variants
from wq_cli.bench.scoring import Scorer, clustered_error
from wq_cli.config import Generation, Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener, Screen
from wq_cli.errors import WqError
from wq_cli.models import loading
from wq_cli.results import EvalResult
from wq_cli.suites import Questions

OPTIONS = ("a dog", "a cat", "left", "right", "no")
ASKED = ("what happens", "is there a dog", "how many", "when does it move")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava_onevision(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """NExT-QA of two videos that can be read, one that is damaged and one that is missing."""
    columns = "video,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4"
    rows = [
        f"{name},8,96,64,{question},{number},{number},{kind},{','.join(OPTIONS)}"
        for name in ("11", "22", "33", "44")
        for number, (question, kind) in enumerate(zip(ASKED, ("CW", "DO", "DC", "TN"), strict=True))
    ]
    (tmp_path / "val.csv").write_text("\n".join([columns, *rows]) + "\n")
    small_videos.make(tmp_path / "11.mp4", n=16, fps=8)
    small_videos.make(tmp_path / "22.mp4", n=24, fps=8, width=64)
    (tmp_path / "33.mp4").write_bytes(b"no video at all" * 100)
    return tmp_path


def run(
    folder: Path,
    model: Path,
    *,
    mode: Any = "likelihood",
    tokens: int = 4,
    names: tuple[str, ...] | list[str] = ("windowquant", "rtn2"),
    budgets: tuple[float, ...] = (15.0, 20.0),
    **how: Any,
) -> EvalResult:
    settings = Settings(
        Sampling(frames=16),
        Quantization(window=16),
        Generation(max_new_tokens=tokens),
        Runtime(profile="demo", model=str(model), device="cpu", dtype="float32", backend="torch"),
    )
    rows = variants(settings.quantization, names, budgets)
    with Listener(Screen(quiet=True)) as listener:
        return evaluate(settings, listener, Questions("nextqa", folder, mode=mode), rows, **how)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_likelihoods_are_those_of_the_whole_sequence(folder: Path, model_folder: Path) -> None:
    record = folder / "record.jsonl"
    result = run(folder, model_folder, record=record)
    header, *lines = lines_of(record)
    assert header["model"]["dtype"] == "float32" and header["versions"]["torch"] == torch.__version__.split("+")[0]
    assert header["template"].startswith("{question}") and "<|im_start|>" in header["chat_template"]
    assert [line["id"] for line in lines] == [f"{name}/{number}" for name in ("11", "22") for number in range(4)]

    model = loading.load_weights(loading.open_checkpoint(str(model_folder)), "cpu", "float32", "full")
    tokenizer, end = model.processor.tokenizer, next(iter(model.eos_ids))
    for line in lines[::3]:
        clip = video.read(folder / f"{line['clip']}.mp4", Sampling(frames=16), default_frames=8)
        assert line["pts_seconds"] == clip.pts_seconds.tolist()
        prompt = model.prompt(line["prompt"], model.encode(clip.frames, clip.pts_seconds))
        assert f"({'ABCDE'[3]}) {OPTIONS[3]}" in line["prompt"]
        for option, found in zip(OPTIONS, line["answers"]["fp16"]["log_likelihoods"], strict=True):
            ids = [*tokenizer(option)["input_ids"], end]
            with torch.inference_mode():
                embeds = torch.cat([prompt.embeds, model.embed(torch.tensor(ids[:-1]))])
                logits = model.logits(model.decoder(inputs_embeds=embeds[None]).last_hidden_state)[0].double()
            chances = logits.log_softmax(dim=-1)[len(prompt.embeds) - 1 :]
            assert found == pytest.approx(float(chances[range(len(ids)), ids].sum()), abs=2e-4)

    full, *others = result.rows
    assert [row.label for row in result.rows] == ["fp16", "windowquant @ 15", "windowquant @ 20", "rtn2"]
    assert full.kl_to_full == 0 and full.greedy_agreement == 1 and full.effective_bits == 32
    for row in result.rows:
        answers = [line["answers"][row.label] for line in lines]
        likeliest = [OPTIONS[max(range(5), key=a["log_likelihoods"].__getitem__)] for a in answers]
        right = [choice == line["answer"] for choice, line in zip(likeliest, lines, strict=True)]
        assert row.accuracy == sum(right) / 8
        by_clip = torch.tensor(right).double().view(2, 4)
        residuals = (by_clip - by_clip.mean()).sum(dim=1)
        assert row.standard_error == pytest.approx(float((residuals**2).sum().sqrt()) / 8)
    assert all(row.kl_to_full > 1e-6 for row in others)
    assert others[0].effective_bits <= 15 < others[1].effective_bits <= 20


def test_what_cannot_be_asked_is_told_and_left_out(folder: Path, model_folder: Path) -> None:
    result = run(folder, model_folder)
    assert (result.questions, result.clips) == (8, 2)
    reasons = {item.id: item.reason for item in result.skipped}
    assert list(reasons) == [f"{name}/{number}" for name in ("44", "33") for number in range(4)]
    assert reasons["44/0"] == "there is no video `44`" and "33.mp4" in reasons["33/0"]
    (notice,) = result.notices
    assert notice.startswith("8 questions are left out (44/0: there is no video `44`; ")
    with pytest.raises(WqError, match=r"can be asked: 16 frames, question and answer need"):
        run(folder, model_folder, tokens=5000)


def without_times(result: EvalResult) -> list[Any]:
    return [replace(row, search_ms=0.0, tokens_per_second=None) for row in result.rows]


def test_a_cut_run_goes_on_where_it_was(folder: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = folder / "record.jsonl"
    whole = run(folder, model_folder, record=record)
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(lines[:4]) + lines[4][:200])  # header, three questions, and the beginning of the next
    asked: list[str] = []
    ask = Scorer.ask

    def counted(self: Scorer, item: Any, *rest: Any) -> Any:
        asked.append(item.id)
        return ask(self, item, *rest)

    monkeypatch.setattr(Scorer, "ask", counted)
    again = run(folder, model_folder, record=record)
    assert asked == ["11/3", "22/0", "22/1", "22/2", "22/3"]
    assert without_times(again) == without_times(whole)
    assert [line["id"] for line in lines_of(record)[1:]] == [line["id"] for line in map(json.loads, lines[1:])]
    assert run(folder, model_folder, record=record).rows == again.rows
    assert len(asked) == 5


def test_a_record_of_another_run_is_left_alone(folder: Path, model_folder: Path) -> None:
    record = folder / "record.jsonl"
    for text, message in (
        ("[1, 2]\n", "is no record of `wq eval`"),
        ("not JSON\n", "is no record of `wq eval`"),
        ('{"suite": "mvbench"}\n', "is the record of another run: its `command`"),
        ("notes without an end of line", "is no record of `wq eval`"),
        ("[" * 100_000 + "\n", "is no record of `wq eval`"),
        ("\udcff\n", "is no record of `wq eval`"),
    ):
        record.write_text(text, errors="surrogateescape")
        with pytest.raises(WqError, match=message):
            run(folder, model_folder, record=record)
        assert record.read_text(errors="surrogateescape") == text
    record.unlink()
    run(folder, model_folder, record=record)
    with pytest.raises(WqError, match="another run: its `answer_tokens`"):
        run(folder, model_folder, record=record, tokens=5)


@pytest.mark.parametrize(
    "change",
    [
        {"answers": {}},
        {"family": ["a"]},
        {"reference_ids": []},
        {"answers": lambda answers: {name: answer | {"kl": "low"} for name, answer in answers.items()}},
    ],
)
def test_an_edited_record_is_none(folder: Path, model_folder: Path, change: dict[str, Any]) -> None:
    record = folder / "record.jsonl"
    run(folder, model_folder, record=record)
    header, *lines = lines_of(record)
    edited = {key: made(lines[0][key]) if callable(made) else made for key, made in change.items()}
    record.write_text("".join(json.dumps(line) + "\n" for line in (header, lines[0] | edited)))
    before = record.read_bytes()
    with pytest.raises(WqError, match="is no record of `wq eval`"):
        run(folder, model_folder, record=record)
    assert record.read_bytes() == before


def test_a_device_that_never_ends_is_not_read(folder: Path, model_folder: Path) -> None:
    with pytest.raises(WqError, match="cannot write `/dev/full`: no space left"):
        run(folder, model_folder, record=Path("/dev/full"))


def test_questions_of_a_clip_share_one_prefill(
    folder: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are those of a prefill for every row, and for what sees the question in it those of float32."""
    names = ["windowquant", "random", "rtn2", "kivi", "akvq-vl:recent=16", "skvq", "smoothquant:group=32", "mixkvq"]
    names.append("focus:window=16")
    decoder_runs: list[int] = []
    run_decoder = engine.run_decoder

    def counted(model: Any, embeds: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        decoder_runs.append(embeds.shape[1])
        return run_decoder(model, embeds, *rest, **more)

    monkeypatch.setattr(engine, "run_decoder", counted)
    run(folder, model_folder, names=names, budgets=(15.0,), record=folder / "shared.jsonl")
    header, *shared = lines_of(folder / "shared.jsonl")
    assert sum(tokens >= shared[0]["visual_tokens"] for tokens in decoder_runs) == 2  # clips
    monkeypatch.setattr(recorded, "memory", lambda device: (1000, 2**40))
    run(folder, model_folder, names=names, budgets=(15.0,), record=folder / "each.jsonl")
    each = lines_of(folder / "each.jsonl")[1:]
    visual = min(line["visual_tokens"] for line in each)
    assert sum(tokens >= visual for tokens in decoder_runs) == 2 + len(each) * len(header["variants"])
    for ours, theirs in zip(shared, each, strict=True):
        assert {**ours, "answers": 0} == {**theirs, "answers": 0}
        for label, answer in ours["answers"].items():
            expected = theirs["answers"][label]
            sees_question = label.startswith(("focus", "mixkvq"))
            for figure in (
                "effective_bits",
                "kv_bytes",
                "metadata_bytes",
                *(() if sees_question else ("choice", "text")),
            ):
                assert answer[figure] == expected[figure], (label, figure)
            for figure in ("kl", "log_likelihoods"):
                assert answer[figure] == pytest.approx(expected[figure], abs=1e-3 if sees_question else 0), label


def test_budgets_without_room_have_no_row(folder: Path, model_folder: Path) -> None:
    """The first window and the tail of 11.mp4 alone take more than 3 bits a number."""
    names, record = ("windowquant", "rtn2"), folder / "record.jsonl"
    with pytest.raises(WqError, match="the policy needs at least"):
        run(folder, model_folder, names=("windowquant",), budgets=(3.0, 2.0))
    result = run(folder, model_folder, names=names, budgets=(3.0, 20.0), record=record)
    assert [row.label for row in result.rows] == ["fp16", "windowquant @ 20", "rtn2"]
    assert "lowest widths of their policies are left out: windowquant @ 3" in result.notices[0]
    again = run(folder, model_folder, names=names, budgets=(3.0, 20.0), record=record)
    assert again == result
    header, *lines = record.read_text().splitlines(keepends=True)
    del (first := json.loads(lines[0]))["answers"]["windowquant @ 20"]
    record.write_text("".join([header, json.dumps(first) + "\n", *lines[1:]]))
    with pytest.raises(WqError, match="is no record of `wq eval`"):
        run(folder, model_folder, names=names, budgets=(3.0, 20.0), record=record)


def test_policies_that_were_told_nothing_of_the_model(folder: Path, model_folder: Path) -> None:
    """Named, they are an error before any question is asked; of all policies they are left out."""
    asked = ["kvtuner", "rtn2", "kvmix"]
    with pytest.raises(WqError, match="`kvtuner` needs what was measured"):
        run(folder, model_folder, names=asked)
    result = run(folder, model_folder, names=asked, leave_out=True)
    assert [row.label for row in result.rows] == ["fp16", "rtn2"]
    assert [notice.split("`")[1] for notice in result.notices[:2]] == ["kvtuner", "kvmix"]


def test_letters_are_generated_through_the_cache(folder: Path, model_folder: Path) -> None:
    record = folder / "record.jsonl"
    result = run(folder, model_folder, mode="letter", record=record)
    _, *lines = lines_of(record)
    assert result.answer == "letter" and result.rows[0].tokens_per_second
    for line in lines:
        assert line["prompt"].endswith("Answer with the letter of the right option.")
        for answer in line["answers"].values():
            assert answer["log_likelihoods"] is None
            assert answer["choice"] == (answer["text"] if answer["text"] in OPTIONS else None)
    right = [line["answers"]["rtn2"]["choice"] == line["answer"] for line in lines]
    assert result.rows[-1].accuracy == sum(right) / 8
    assert clustered_error(torch.tensor(right).double().numpy(), torch.arange(8).numpy()) >= 0
