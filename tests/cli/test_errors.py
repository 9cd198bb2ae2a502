"""Exit codes, the words of errors, and one JSON document whatever happens."""

from __future__ import annotations

import json
from pathlib import Path

import fake_pipeline
import pytest

from wq_cli import pipeline
from wq_cli.app import main
from wq_cli.errors import WqError
from wq_cli.report import files


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "ask", fake_pipeline.ask)
    monkeypatch.setenv("FAKE_MODE", "answer")


@pytest.mark.parametrize(
    ("mode", "line", "code", "said"),
    [
        ("video-error", "ask clip.mp4 q", 1, "`clip.mp4` holds no video"),
        ("fail-while-answering", "ask clip.mp4 q", 1, "`cuda` ran out of memory"),
        ("answer", "ask clip.mp4", 2, "missing argument `PROMPT`"),
        ("answer", "ask clip.mp4 q --frames 0", 2, "`--frames 0` is not positive"),
        ("answer", "ask clip.mp4 q --frames 8 --fps 2", 2, "`--frames` and `--fps` cannot be used together"),
        ("answer", "ask clip.mp4 q --bits 3 --kv-memory 1GB", 2, "cannot be used together"),
        ("answer", "ask clip.mp4 q --policy kiwi", 2, "there is no policy `kiwi`"),
        ("answer", "ask clip.mp4 q --profile dmo", 1, "there is no profile `dmo`"),
        ("answer", "ask clip.mp4 q --start 1:xx", 2, "`1:xx` is not a time"),
        ("answer", "ask clip.mp4 q --scorer cosin", 2, "`cosin` is not one of"),
        ("answer", "ask clip.mp4 q --frams 3", 2, "no such option: --frams"),
        ("answer", "ask clip.mp4 q --frames many", 2, "`many` is not a whole number"),
        ("answer", "ask clip.mp4 q --alpha nan", 2, "`nan` is not a number"),
        ("answer", "ask - -", 2, "cannot both come from stdin"),
        ("answer", "ask clip.mp4 \udcff", 2, "holds bytes that cannot be decoded"),
        ("answer", "inspect clip.mp4 --prompt \udcff", 2, "invalid value for `--prompt`"),
        ("answer", "inspect clip.mp4", 2, "missing option `--prompt`"),
        ("answer", "ask -x.mp4 q", 2, "no such option: -x"),
        ("answer", "nonsense", 2, "no such command `nonsense`"),
        ("answer", "profiles show none", 1, "there is no profile `none`"),
        ("answer", "bench --policies fp16,kiwi", 2, "there is no policy `kiwi`"),
        ("answer", "bench --batch 0", 2, "`--batch 0` is below 1"),
        ("answer", "scenes make x.mp4 --fps 0", 2, "`--fps 0` is not"),
        ("bug", "ask clip.mp4 q", 3, "unexpected ZeroDivisionError: division by zero"),
        ("interrupt", "ask clip.mp4 q", 130, "interrupted"),
        ("interrupt-while-answering", "ask clip.mp4 q", 130, "interrupted"),
    ],
)
def test_a_failure_has_its_code_at_most_three_lines_and_one_json_document(
    mode: str, line: str, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    assert main([*line.split(), "--quiet"]) == code
    shown = capsys.readouterr().err
    error, _, hint = shown.partition("\n\n")
    error = error.strip().removeprefix("error: ")
    assert said in error
    assert "\n" not in error and not error.endswith(".")
    assert hint == "" or (hint.startswith("hint: ") and hint.count("\n") == 1)
    assert main([*line.split(), "--json", "--quiet"]) == code
    document = json.loads(capsys.readouterr().out)
    words = line.split()
    assert document == {
        "schema_version": 1,
        "command": " ".join(words[: 2 if words[0] in ("profiles", "scenes") else 1]),
        "error": error,
        "hint": hint.strip().removeprefix("hint: ") or None,
        "exit_code": code,
        "kind": "error",
    }


def test_an_empty_question_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "clip.mp4", " "]) == 2
    assert capsys.readouterr().err.startswith("error: invalid value: the text is empty\n")


def test_hints_name_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    for line, hint in {
        "profiles": "see `wq profiles --help`",
        "ask clip.mp4": "see `wq ask --help`",
        "ask -x.mp4 q": "put `./` before a file name that starts with `-`, or `--` before the arguments",
        "ask clip.mp4 q --policy rtn": "did you mean `rtn",
        "bench --policies ,": "known: windowquant",
    }.items():
        main(line.split())
        assert f"hint: {hint}" in capsys.readouterr().err


def test_a_name_that_begins_with_a_dash_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "--json", "--", "-x.mp4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["video"]["path"], document["prompt"]) == ("-x.mp4", "--json")


def test_verbose_adds_the_traceback_of_a_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODE", "bug")
    assert main(["ask", "clip.mp4", "q", "-v"]) == 3
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert shown.index("Traceback") < shown.index("error: unexpected ZeroDivisionError: division by zero")


def test_the_end_of_a_line_in_a_name_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "demo\ndemo"]) == 1
    assert capsys.readouterr().err.startswith("error: there is no profile `demo\\ndemo`\n\nhint: ")


def test_markup_and_long_words_in_errors_are_printed_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "[red]" + "x" * 200 + "[/red] \x1b[31m.mp4"

    def fail(*_: object) -> None:
        raise WqError(f"`{name}` is missing", "look [here]")

    monkeypatch.setattr(pipeline, "ask", fail)
    assert main(["ask", name, "q"]) == 1
    expected = f"error: `[red]{'x' * 200}[/red] \\x1b[31m.mp4` is missing\n\nhint: look [here]\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("mode", ["fail-while-answering", "bug", "interrupt"])
def test_a_failure_leaves_what_was_there(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MODE", mode)
    target = tmp_path / "answer.json"
    target.write_text("before")
    main(["ask", "clip.mp4", "q", "-q", "--output", str(target)])
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]
    assert target.read_text() == "before"


@pytest.mark.parametrize("name", ["no/such/answer.json", "folder", "x" * 300 + ".json"])
def test_output_that_cannot_be_written_is_refused_before_the_work(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    assert main(["ask", "clip.mp4", "q", "--output", str(tmp_path / name)]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("error: cannot write `")


def test_a_path_in_what_the_system_says_is_spelled_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(WqError, match=f"there is no folder `{tmp_path}/Videos/New`"):
        files.check_target(tmp_path / "Videos" / "New" / "a.json")


def test_a_settings_error_of_the_profile_option_reaches_the_defaults(
    config_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def ask(video: str, prompt: str, settings: object, listener: object) -> None:
        seen["settings"] = settings
        raise WqError("stop")

    monkeypatch.setattr(pipeline, "ask", ask)
    (config_home / "profiles").mkdir()
    text = "name: mine\ndescription: d\nmodel: m\nwindow: 64\nalpha: 3.5\nkv_dtype: bfloat16\ndtype: float16\n"
    (config_home / "profiles" / "mine.yaml").write_text(text)
    main(["ask", "clip.mp4", "q", "--profile", "mine", "--alpha", "1.5"])
    settings = seen["settings"]
    assert (settings.quantization.window, settings.quantization.alpha) == (64, 1.5)
    assert (settings.quantization.kv_dtype, settings.runtime.dtype) == ("bfloat16", "float16")
    assert settings.runtime.profile == "mine"
