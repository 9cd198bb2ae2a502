"""Public suites in the formats in which they are handed out, made here with real videos and pictures."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import small_videos
from PIL import Image

from wq_cli import suites
from wq_cli.config import Limits
from wq_cli.errors import UsageError, VideoError, WqError
from wq_cli.suites.item import Item

NEXTQA_COLUMNS = "video,frame_count,width,height,question,answer,qid,type,a0,a1,a2,a3,a4"


def loaded(name: str, folder: Path) -> tuple[list[Item], dict[str, str]]:
    items, skipped = suites.load(suites.Questions(name, folder), 0)
    return items, {item.id: item.reason for item in skipped}


def seen(item: Item, frames: int = 4) -> tuple[list[int], list[float]]:
    """Numbers drawn into the frames of a question's clip, and their times."""
    pictures = item.footage.read(frames, None, Limits())
    return small_videos.numbers(pictures.frames), pictures.pts_seconds.tolist()


def video(path: Path, frames: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return small_videos.make(path, n=frames, fps=4)


def test_nextqa(tmp_path: Path) -> None:
    rows = [
        "3637809797,369,640,480,how does he play,2,6,CH,rolls,taps,strums,hits,pats",
        "5555555555,369,640,480,why,0,1,CW,a,b,c,d,e",
        '3637809797,369,640,480,"what, then",4,7,TN,a,b,c,d,"e, f"',
        "3637809797,369,640,480,where,9,8,DL,a,b,c,d,e",
    ]
    (tmp_path / "val.csv").write_text("\n".join([NEXTQA_COLUMNS, *rows]) + "\n")
    video(tmp_path / "NExTVideo" / "1164" / "3637809797.mp4")
    items, skipped = loaded("nextqa", tmp_path)
    assert [(i.id, i.family, i.question, i.answer) for i in items] == [
        ("3637809797/6", "CH", "how does he play", "strums"),
        ("3637809797/7", "TN", "what, then", "e, f"),
    ]
    assert items[0].options == ("rolls", "taps", "strums", "hits", "pats")
    assert skipped == {
        "5555555555/1": "there is no video `5555555555`",
        "3637809797/8": "its row is damaged",
    }
    assert seen(items[0]) == ([1, 3, 5, 7], [0.25, 0.75, 1.25, 1.75])


def test_intentqa_on_a_file_of_questions(tmp_path: Path) -> None:
    columns = NEXTQA_COLUMNS.replace("video", "video_id") + ",action,lemma,lemma_id"
    (tmp_path / "train.csv").write_text(f"{columns}\n61,9,6,3,why,1,2,CW,a,b,c,d,e,playing,play,141\n")
    video(tmp_path / "videos" / "61.mp4")
    items, skipped = loaded("intentqa", tmp_path / "train.csv")
    assert [(i.id, i.clip, i.family, i.answer) for i in items] == [("61/2", "61", "CW", "b")]
    assert not skipped


def test_egoschema_asks_what_has_an_answer(tmp_path: Path) -> None:
    def entry(uid: str, **changes: str) -> dict[str, str]:
        options = {f"option {number}": f"C does {number}" for number in range(5)}
        return {"q_uid": uid, "google_drive_id": "x", "question": f"what of {uid}?", **options, **changes}

    halves = entry("ff", question="what\ud800?")
    entries = [entry("aa"), entry("bb"), entry("cc"), entry("dd", question=""), 7, entry("ee"), halves]
    (tmp_path / "questions.json").write_text(json.dumps(entries))
    answers = {"aa": 3, "cc": 0, "dd": 0, "": 1, "ee": 1.0, "ff": 1}
    (tmp_path / "subset_answers.json").write_text(json.dumps(answers))
    for name in ("aa", "ee", "ff"):
        video(tmp_path / "videos" / f"{name}.mp4")
    items, skipped = loaded("egoschema", tmp_path)
    assert [(i.id, i.question, i.answer) for i in items] == [("aa", "what of aa?", "C does 3")]
    damaged = "its entry is damaged"
    text = "its text is damaged"
    assert skipped == {"cc": "there is no video `cc`", "dd": damaged, "ee": damaged, "ff": text}


def test_mvbench_takes_the_stretch_that_is_asked_about(tmp_path: Path) -> None:
    folder = tmp_path / "json"
    folder.mkdir()
    asked = {"question": "what?", "candidates": ["one", "two"], "answer": "two"}
    sequence = [
        {**asked, "video": "ZS9XR.mp4", "start": 1.0, "end": 2.0},
        {**asked, "video": "NEW.mp4", "start": 0.0, "end": 2.0},
        {**asked, "video": "ZS9XR.mp4"},
        {**asked, "video": "gone.mp4", "start": 0.0, "end": 2.0},
        {**asked, "video": "ZS9XR.mp4", "start": 0.0, "end": 1.0, "answer": "three"},
    ]
    (folder / "action_sequence.json").write_text(json.dumps(sequence))
    (folder / "moving_count.json").write_text(json.dumps([{**asked, "video": "video_10.mp4"}]))
    (folder / "episodic_reasoning.json").write_text(
        json.dumps([{**asked, "video": "friends_s01", "start": 1.0, "end": 3.0}])
    )
    video(tmp_path / "video/star/Charades_v1_480/ZS9XR.mp4")
    video(tmp_path / "video/data0613/star/Charades_v1_480/NEW.mp4")
    video(tmp_path / "video/clevrer/video_validation/video_10.mp4")
    frames = tmp_path / "video/tvqa/frames_fps3_hq/friends_s01"
    frames.mkdir(parents=True)
    for number in range(12):  # four seconds
        Image.fromarray(small_videos.numbered(number)).save(frames / f"{number + 1:05d}.jpg")
    items, skipped = loaded("mvbench", tmp_path)
    by_id = {item.id: item for item in items}
    assert list(by_id) == ["action_sequence/0", "action_sequence/1", "moving_count/0", "episodic_reasoning/0"]
    assert {item.family for item in items} == {"action_sequence", "moving_count", "episodic_reasoning"}
    assert all(item.answer == "two" for item in items)
    assert seen(by_id["action_sequence/0"], 2) == ([5, 7], [1.25, 1.75])
    assert seen(by_id["moving_count/0"], 2) == ([2, 6], [0.5, 1.5])
    numbers, times = seen(by_id["episodic_reasoning/0"], 3)
    assert numbers == [4, 6, 8]  # of those from 3 to 8, at 3 a second
    assert times == pytest.approx([4 / 3, 6 / 3, 8 / 3])
    assert skipped.pop("action_sequence/3").startswith("there is no video `")
    assert skipped == {"action_sequence/2": "its entry is damaged", "action_sequence/4": "its entry is damaged"}


def test_milebench_puts_pictures_first_and_points_at_them(tmp_path: Path) -> None:
    task = tmp_path / "SceneTransition"
    (task / "images").mkdir(parents=True)
    for number, size in ((7, (96, 64)), (3, (96, 64)), (5, (60, 64))):
        Image.fromarray(small_videos.numbered(number, *size)).save(task / "images" / f"p{number}.png")
    instance = {
        "context": "From {image#1} to {image#2}, as in {table#3}?",
        "images_path": ["p7.png", "p3.png", "p5.png"],
        "choice_list": ["left", "right"],
    }
    entry = {"sample_id": 0, "task_instruction_id": 1, "task_instance": instance, "response": "right"}
    gone = {**instance, "images_path": ["p9.png"]}
    data = [
        entry,
        {**entry, "task_instance": {name: instance[name] for name in ("context", "images_path")}},
        {**entry, "task_instance": gone},
        {**entry, "task_instruction_id": 5},
    ]
    meta = {"task_instruction": ["not this", "Say where."], "question_type": "multi-choice"}
    (task / "SceneTransition.json").write_text(json.dumps({"meta_data": meta, "data": data}))
    items, skipped = loaded("milebench", tmp_path)
    (item,) = items
    assert item.question == "Say where.\nFrom <Image 1> to <Image 2>, as in <Image 3>?"
    assert (item.family, item.options, item.answer) == ("SceneTransition", ("left", "right"), "right")
    assert seen(item, 1) == ([7, 3, 5], [0.0, 1.0, 2.0])  # every picture, whatever the number of frames
    (task / "images" / "p3.png").write_bytes(b"no picture")
    with pytest.raises(VideoError, match="1 of 3 pictures"):
        seen(item)
    assert skipped["SceneTransition/1"] == "it has no options to choose from"
    assert skipped["SceneTransition/2"].endswith("p9.png`")
    assert skipped["SceneTransition/3"] == "its entry is damaged"


def test_scenes_are_the_demo_worlds_held_out_questions() -> None:
    items, skipped = suites.load(suites.Questions(count=24), 3)
    assert len(items) == 24 and not skipped
    assert len({item.id for item in items}) == 24
    assert all(item.answer in item.options for item in items)
    pictures = items[0].footage.read(16, None, Limits())
    assert pictures.frames.shape == (16, 64, 64, 3) and pictures.frames.dtype == np.uint8


def test_questions_of_a_clip_come_together_and_a_seed_draws_some(tmp_path: Path) -> None:
    with (tmp_path / "test.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(NEXTQA_COLUMNS.split(","))
        for number in range(20):
            writer.writerow([number % 2, 9, 6, 3, f"q{number}", 0, number, "CW", *"abcde"])
    for name in ("0", "1"):
        video(tmp_path / f"{name}.mp4")
    everything, _ = suites.load(suites.Questions("nextqa", tmp_path), 0)
    assert [item.clip for item in everything] == ["0"] * 10 + ["1"] * 10
    some, again, others = (suites.load(suites.Questions("nextqa", tmp_path, 6), seed)[0] for seed in (1, 1, 2))
    assert some == again and some != others and len(some) == 6
    assert some == [item for item in everything if item in some]


def test_questions_that_share_an_id_are_kept_apart(tmp_path: Path) -> None:
    rows = [f"11,8,96,64,{question},0,5,CW,a,b,c,d,e" for question in ("what", "why", "who")]
    (tmp_path / "val.csv").write_text("\n".join([NEXTQA_COLUMNS, *rows]) + "\n")
    video(tmp_path / "11.mp4")
    items, skipped = loaded("nextqa", tmp_path)
    assert [(item.id, item.question) for item in items] == [("11/5", "what"), ("11/5 (2)", "why"), ("11/5 (3)", "who")]
    assert skipped == {}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nextqa", {}, "holds no `test.csv`"),
        ("nextqa", {"test.csv": "video,question\n"}, "has no column `answer`"),
        (
            "nextqa",
            {"test.csv": f"{NEXTQA_COLUMNS}\n1,1,1,1,why,0,1,CW,a,b,c,d,e\n"},
            "can be asked: there is no video `1`",
        ),
        ("nextqa", {"test.csv": f"{NEXTQA_COLUMNS}\n"}, "no question of `nextqa` in `.*` can be asked$"),
        ("egoschema", {"questions.json": "[]"}, "holds no `subset_answers.json`"),
        ("egoschema", {"questions.json": "[", "subset_answers.json": "{}"}, "`.*questions.json` cannot be read"),
        ("egoschema", {"questions.json": "{}", "subset_answers.json": "{}"}, "holds no list"),
        ("mvbench", {}, "holds no `json/action_sequence.json`"),
        ("milebench", {"GPR/GPR.json": "{}"}, "has no `meta_data`"),
        ("milebench", {}, "holds no task of MileBench"),
        ("egoschema", {"questions.json": "[" * 100_000, "subset_answers.json": "{}"}, "`.*questions.json` cannot be"),
    ],
)
def test_a_folder_in_another_format_is_one_line(
    tmp_path: Path, name: str, content: dict[str, str], message: str
) -> None:
    for file, text in content.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    with pytest.raises(WqError, match=message) as caught:
        loaded(name, tmp_path)
    assert "\n" not in caught.value.message


def test_suites_and_their_folders(tmp_path: Path) -> None:
    for name, folder, message in (
        ("nextqa", None, "is read from a folder"),
        ("scenes", tmp_path, "is made, not read"),
        ("next-qa", tmp_path, "there is no suite `next-qa`"),
    ):
        with pytest.raises(UsageError, match=message):
            suites.load(suites.Questions(name, folder, 1), 0)
    with pytest.raises(WqError, match="there is no folder"):
        suites.load(suites.Questions("mvbench", tmp_path / "nowhere"), 0)
    (tmp_path / "file").touch()
    for name in suites.NAMES[1:]:
        with pytest.raises(WqError):
            suites.load(suites.Questions(name, tmp_path / "file"), 0)
    with pytest.raises(UsageError, match="`--questions 10000000` is above"):
        suites.load(suites.Questions(count=10**7), 0)
