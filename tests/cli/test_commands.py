"""`profiles`, `doctor`, `scenes`, and files written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from wq_cli.app import main
from wq_cli.errors import WqError
from wq_cli.report import files
from wq_cli.report.json import document
from wq_cli.results import Failure


def ran_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema_version"] == 1
    assert (
        shown["command"]
        == " ".join(word for word in arguments[:2] if not word.startswith("-"))[: len(shown["command"])]
    )
    return shown


def test_profiles_list_marks_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    main(["profiles", "use", "llava-onevision-0.5b"])
    capsys.readouterr()
    shown = ran_json(capsys, "profiles", "list")
    rows = {row["name"]: row for row in shown["profiles"]}
    assert [name for name, row in rows.items() if row["is_default"]] == ["llava-onevision-0.5b"]
    assert rows["llava-onevision-7b"]["model"] == "llava-hf/llava-onevision-qwen2-7b-ov-hf"
    assert main(["profiles", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("▶")] == ["llava-onevision-0.5b"]


def test_profiles_list_survives_a_broken_one(config_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config_home / "profiles").mkdir()
    (config_home / "profiles" / "broken.yaml").write_text("[")
    rows = {row["name"]: row for row in ran_json(capsys, "profiles", "list")["profiles"]}
    assert rows["broken"]["model"] is None
    assert "wq profiles validate broken" in rows["broken"]["description"]


def test_profiles_show_explains_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "show", "demo"]) == 0
    shown = capsys.readouterr().out
    assert "visual tokens per window" in shown
    assert ran_json(capsys, "profiles", "show", "demo")["values"]["window"] == 32


def test_profiles_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("name: a\ndescription: b\nmodel: c\nwidow: 3\nframes: 0\n")
    said = (
        "profile `own.yaml` is not valid: unknown key `widow`, did you mean `window`?; "
        "`frames` must be a whole number from 1, not `0`"
    )
    assert main(["profiles", "validate", str(path)]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.splitlines()[0] == f"error: {said}"
    assert main(["profiles", "validate", str(path), "--json"]) == 1
    failure = json.loads(capsys.readouterr().out)
    assert (failure["kind"], failure["command"], failure["error"]) == ("error", "profiles validate", said)
    assert ran_json(capsys, "profiles", "validate", "demo")["path"].endswith("demo.yaml")


def test_doctor_names_versions_device_and_backend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import version

    from wq_cli import profile

    monkeypatch.setattr(profile, "valid", lambda: [profile.load("demo")])
    shown = ran_json(capsys, "doctor", "--device", "cpu")
    assert shown["versions"]["torch"] == version("torch")
    assert (shown["device"], shown["dtype"], shown["backend"]) == ("cpu", "float32", "torch")
    assert "cpu" in shown["backend_reason"]
    assert shown["memory_total_bytes"] > shown["memory_free_bytes"] > 0
    assert main(["doctor", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert version("transformers") in shown
    assert [line.split()[0] for line in shown.splitlines() if line.rstrip().endswith("yes")] == ["demo"]


def test_doctor_says_which_profiles_fit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from wq_cli import device, profile

    chosen = [profile.load(name) for name in ("demo", "llava-onevision-0.5b", "llava-onevision-7b", "llava-1.5-13b")]
    monkeypatch.setattr(profile, "valid", lambda: chosen)
    monkeypatch.setattr(device, "memory", lambda device: (8 * 2**30, 16 * 2**30))
    shown = ran_json(capsys, "doctor", "--device", "cpu", "--dtype", "bfloat16")
    rows = {row["name"]: row for row in shown["fits"]}
    # 196 tokens a frame, 2 (keys, values) x 28 layers x 4 heads x 128 numbers of 2 bytes a token.
    assert rows["llava-onevision-7b"]["kv_bytes_per_frame"] == 196 * 2 * 28 * 4 * 128 * 2
    # Published: 8.03 billion parameters; nine tenths of them are in the decoder's linear layers.
    assert rows["llava-onevision-7b"]["weight_bytes"] == pytest.approx(2 * 8.03e9, rel=0.001)
    assert {name: row["fits"] for name, row in rows.items() if name.startswith("llava-onevision")} == {
        "llava-onevision-0.5b": "full",
        "llava-onevision-7b": "4bit",
    }
    assert rows["llava-1.5-13b"]["fits"] == "no"
    assert rows["demo"]["is_here"] and rows["demo"]["fits"] == "full"


def test_doctor_refuses_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cuda:77"]) == 1
    assert "`cuda:77`" in capsys.readouterr().err


def test_scenes_make_renders_a_clip_and_prints_questions_with_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import av

    target = tmp_path / "a clip.mp4"
    line = ["scenes", "make", str(target), "--seconds", "4", "--fps", "2", "--size", "64"]
    questions = ran_json(capsys, *line)["questions"]
    assert len({question["family"] for question in questions}) == len(questions) > 3
    with av.open(str(target)) as container:
        assert (container.streams.video[0].width, container.streams.video[0].frames) == (64, 8)
    assert main(line) == 0
    shown = capsys.readouterr()
    for question in questions:
        assert question["answer"].split()[0] in shown.out
    assert f"wq ask '{target}' \"{questions[-1]['text']}\"" in " ".join(shown.err.split())


@pytest.mark.parametrize("line", [["inspect", "a.mp4", "--prompt", "q", "--png"], ["bench", "--plot"]])
def test_a_picture_that_is_no_png_is_refused_before_the_work(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "map.jpeg"
    assert main([*line, str(target)]) == 1
    assert capsys.readouterr().err == (
        f"error: `{target}` cannot be drawn: pictures are PNG\n\nhint: `{tmp_path / 'map.png'}` can\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [["ask", "VIDEO", "q", "-o"], ["inspect", "VIDEO", "--prompt", "q", "--png"], ["bench", "--video", "VIDEO", "-o"]],
)
def test_the_video_is_not_written_over(line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video, link = tmp_path / "clip.png", tmp_path / "same.png"
    video.write_bytes(b"precious")
    link.symlink_to(video)
    assert main([str(video) if word == "VIDEO" else word for word in line] + [str(link)]) == 1
    assert capsys.readouterr().err == f"error: `{link}` is the video itself\n\nhint: write to another file\n"
    assert video.read_bytes() == b"precious"


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("before")
    files.write(target, b"after")
    assert target.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [target]


def test_new_files_have_the_usual_permissions(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        files.write(tmp_path / "a.json", b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o644


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.json"
    target.write_text("before")

    def full(self: Path, data: bytes) -> None:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(WqError, match=r"cannot write .*: no space left on device"):
        files.write(target, b"after")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    target, link = tmp_path / "a.json", tmp_path / "link.json"
    link.symlink_to(target)
    files.write(link, b"x")
    assert link.is_symlink() and target.read_bytes() == b"x"
    files.write(Path("/dev/null"), b"x")
    assert not Path("/dev/null").is_file()


def test_json_is_ascii_and_has_no_nan() -> None:
    text = document(Failure("ask", "一\udcff", None, 1))
    assert text.isascii()
    assert json.loads(text)["error"] == "一\udcff"

    from dataclasses import dataclass

    @dataclass
    class Odd:
        values: tuple[float, ...]
        by_bits: dict[int, float]

    text = document(Odd((float("nan"), float("inf"), 1.5), {16: float("-inf")}))
    assert json.loads(text) == {"schema_version": 1, "values": [None, None, 1.5], "by_bits": {"16": None}}
