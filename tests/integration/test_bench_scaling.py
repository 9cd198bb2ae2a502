"""`wq bench scaling`: the clip grows, what is known of its sizes holds, and the picture shows the figures."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import results_by_hand as by_hand
from PIL import Image
from small_videos import make
from tiny_models import llava_onevision

from wq_cli.app import main
from wq_cli.bench_results import ScalingResult, ScalingRow
from wq_cli.report import axes, plot


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model of 4 visual tokens a frame and one more a clip; a clip of 12 frames."""
    folder = tmp_path_factory.mktemp("scaling")
    return str(llava_onevision(folder / "model")), str(make(folder / "a.mp4", n=12))


def test_sizes_grow_with_the_frames(files: tuple[str, str], tmp_path: Path) -> None:
    model, clip = files
    made, picture = tmp_path / "scaling.json", tmp_path / "scaling.png"
    line = [
        "--video",
        clip,
        "-m",
        model,
        "--device",
        "cpu",
        "--frames",
        "10,3,6",
        "--window",
        "4",
        "--decode-tokens",
        "2",
    ]
    assert (
        main(["bench", "scaling", *line, "--policies", "fp16,rtn4", "-o", str(made), "--plot", str(picture), "-q"]) == 0
    )
    shown = json.loads(made.read_text())
    assert shown["command"] == "bench scaling"
    assert [(row["frames"], row["visual_tokens"]) for row in shown["rows"]] == [(3, 13), (6, 25), (10, 41)]
    # 3 layers, 2 KV heads of 16 channels, keys and values in float16, as the default profile keeps them.
    per_token = 3 * 2 * 16 * 2 * 2
    full = [row["policies"][0]["kv_bytes"] for row in shown["rows"]]
    assert full == [row["policies"][0]["kv_bytes_full"] for row in shown["rows"]]
    assert [later - before for before, later in pairwise(full)] == [12 * per_token, 16 * per_token]
    for row in shown["rows"]:
        assert [policy["policy"] for policy in row["policies"]] == ["fp16", "rtn4"]
        assert row["policies"][1]["kv_bytes"] < row["policies"][0]["kv_bytes"]
    assert Image.open(picture).width == plot.WIDTH


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["--frames", "3,20"], 1, "the clip has 12 frames, 20 are asked for"),
        (["--frames", "3,0"], 2, "`--frames 0` is below 1"),
        (["--frames", "3,some"], 2, "`some` is not a whole number"),
    ],
)
def test_bad_input_is_one_line(
    line: list[str], code: int, said: str, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    model, clip = files
    assert main(["bench", "scaling", "--video", clip, "-m", model, "--device", "cpu", *line]) == code
    shown = capsys.readouterr()
    assert said in " ".join(shown.err.split()) and shown.out == ""


def drawn(device: str) -> Image.Image:
    """A line that rises and one that stays."""

    def step(frames: int) -> ScalingRow:
        rises = by_hand.bench_row("rises", 16, frames * 2**20, float(frames), None, None)
        stays = by_hand.bench_row("stays", 4, 2**20, 1.0, None, None)
        return ScalingRow(frames, 10 * frames, (replace(rises, kv_bytes_full=frames * 2**20), stays))

    model = replace(by_hand.MODEL, device=device)
    result = ScalingResult("bench scaling", model, 1, 4, tuple(map(step, (1, 2, 4))), {}, {}, "2026-01-01")
    return Image.open(io.BytesIO(plot.draw_scaling(result))).convert("RGB")


def test_lines_rise_and_stay_and_a_gpu_has_its_peak_drawn() -> None:
    picture = drawn("cpu")
    # The first panel, without its heading and title.
    panel = picture.crop((150, 180, picture.width - 80, 560))

    def heights(colour: tuple[int, int, int], left: int, right: int) -> list[int]:
        points = [(x, y) for x in range(left, right) for y in range(panel.height) if panel.getpixel((x, y)) == colour]
        return [y for _, y in points]

    rising, staying = axes.colour_of(0), axes.colour_of(1)
    third = panel.width // 3
    assert min(heights(rising, 2 * third, panel.width)) < min(heights(rising, third, 2 * third)) - 50
    level = heights(staying, third, panel.width)
    assert max(level) - min(level) < 20
    assert drawn("cuda:0").height > picture.height + 400
