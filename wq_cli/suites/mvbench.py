"""MVBench (Li et al. 2024): `json/TASK.json` and the source videos unpacked below `video/`.

An entry has video, question, candidates and answer (the text of one of them); four tasks ask about the stretch from
`start` to `end` in seconds. Episodic reasoning brings folders of frames in place of files, three a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wq_cli.errors import WqError
from wq_cli.suites.item import Footage, FrameFolder, Item, Skipped, Video, json_of

FRAME_FOLDER_FPS = 3.0
_STAR, _CLEVRER, _PERCEPTION = "star/Charades_v1_480", "clevrer/video_validation", "perception/videos"
# file: (folder of its videos, whether its entries name a stretch of time)
TASKS = {
    "action_sequence": (_STAR, True),
    "action_prediction": (_STAR, True),
    "action_antonym": ("ssv2_video", False),
    "fine_grained_action": ("Moments_in_Time_Raw/videos", False),
    "unexpected_action": ("FunQA_test/test", False),
    "object_existence": (_CLEVRER, False),
    "object_interaction": (_STAR, True),
    "object_shuffle": (_PERCEPTION, False),
    "moving_direction": (_CLEVRER, False),
    "action_localization": ("sta/sta_video", True),
    "scene_transition": ("scene_qa/video", False),
    "action_count": (_PERCEPTION, False),
    "moving_count": (_CLEVRER, False),
    "moving_attribute": (_CLEVRER, False),
    "state_change": (_PERCEPTION, False),
    "fine_grained_pose": ("nturgbd", False),
    "character_order": (_PERCEPTION, False),
    "egocentric_navigation": ("vlnqa", False),
    "episodic_reasoning": ("tvqa/frames_fps3_hq", True),
    "counterfactual_inference": (_CLEVRER, False),
}
# The second one holds what was added to the release of 2025.
_ROOTS = ("video", "video/data0613")


def items(folder: Path) -> Iterator[Item | Skipped]:
    """Questions of the tasks whose file is there, task after task; the task is the family.

    Raises:
        WqError: No task is there, or a file is no list.
    """
    present = [task for task in TASKS if (folder / "json" / f"{task}.json").is_file()]
    if not present:
        raise WqError(f"`{folder}` holds no `json/action_sequence.json` nor another task of MVBench")
    for task in present:
        for number, entry in enumerate(json_of(folder / "json" / f"{task}.json", list)):
            yield _item(folder, task, f"{task}/{number}", entry)


def _item(folder: Path, task: str, name: str, entry: Any) -> Item | Skipped:
    try:
        video, question, answer = str(entry["video"]), str(entry["question"]), str(entry["answer"])
        options = tuple(str(candidate) for candidate in entry["candidates"])
        start, end = (float(entry["start"]), float(entry["end"])) if TASKS[task][1] else (None, None)
        right = options.index(answer)
    except (KeyError, TypeError, ValueError):
        return Skipped(name, "its entry is damaged")
    paths = [folder / root / TASKS[task][0] / video for root in _ROOTS]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return Skipped(name, f"there is no video `{paths[0]}`")
    footage: Footage = Video(path, start, end)
    if path.is_dir():
        footage = FrameFolder(path, FRAME_FOLDER_FPS, start, end)
    clip = f"{TASKS[task][0]}/{video}" + (f" {start:g}-{end:g}" if start is not None else "")
    return Item(name, clip, task, question, options, options[right], footage)
