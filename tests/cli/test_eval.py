"""`wq eval` and `wq bench ablation` on the command line: what is refused, what is shown, what is drawn."""

from __future__ import annotations

import io
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import results_by_hand as by_hand
from PIL import Image, ImageDraw

from wq_cli.app import main
from wq_cli.report import front
from wq_cli.report.axes import Axes, decades, round_values
from wq_cli.report.curves import curve_table, draw_curves
from wq_cli.report.format import ASCII
from wq_cli.results import CurveResult


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("eval nothing", "there is no suite `nothing`"),
        ("eval nextqa", "`nextqa` is read from a folder"),
        ("eval scenes --folder .", "`scenes` is made, not read"),
        ("eval scenes --questions 0", "`--questions 0` is below 1"),
        ("eval scenes --bits 3,x", "`x` is not a number"),
        ("eval scenes --bits 0 --policies windowquant", "`--bits 0.0` is not positive"),
        ("eval scenes --answer loud", "'loud' is not one of"),
        ("eval scenes --record no/such/folder/r.jsonl", "cannot write `no/such/folder/r.jsonl`"),
        ("eval scenes --plot front.svg", "`front.svg` cannot be drawn"),
        ("bench ablation nothing", "there is no ablation `nothing`"),
        ("bench ablation layers --suite nextqa", "`layers` looks at scenes of the demo world"),
        ("bench ablation scorer --questions -1", "`--questions -1` is below 1"),
        ("bench --frames 4 ablation scorer", "options of `ablation` come after its name"),
        (f"bench --batch {10**20}", f"`--batch {10**20}` is above 1048576"),
        (f"bench --fidelity-tokens {10**20}", "is above 1048576"),
        (f"bench scaling --decode-tokens {10**20}", "is above 1048576"),
        ("bench scaling --frames 2,99999", "a rendered scene has no 99999 frames"),
        (f"bench --window {2**31}", "is not in 1 to 2**31 - 1"),
        ("bench nothing", "no such command `nothing`"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_work(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) in (1, 2)
    shown = capsys.readouterr()
    assert not shown.out
    assert message.replace("'", "`") in shown.err.splitlines()[0]


def test_a_failure_names_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    for line, command in (("bench ablation nothing --json", "bench ablation"), ("bench nothing --json", "bench")):
        main(line.split())
        assert json.loads(capsys.readouterr().out)["command"] == command


def test_scenes_at_several_budgets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("front.png", "record.jsonl", "result.json")}
    line = "eval scenes --questions 3 --frames 16 --policies windowquant,rtn2 --bits 6,9 --device cpu"
    options = ["--plot", files["front.png"], "--record", files["record.jsonl"], "--output", files["result.json"]]
    assert main([*line.split(), *map(str, options)]) == 0
    shown = capsys.readouterr()
    assert [row.split("  ")[0] for row in shown.out.splitlines()[2:]] == [
        "fp16", "windowquant @ 6", "windowquant @ 9", "rtn2",
    ]  # fmt: skip
    result = json.loads(files["result.json"].read_text())
    assert [(row["policy"], row["bits_asked"]) for row in result["rows"]] == [
        ("fp16", None), ("windowquant", 6.0), ("windowquant", 9.0), ("rtn2", None),
    ]  # fmt: skip
    for row in result["rows"][1:3]:
        assert row["bits_asked"] - 1.5 < row["effective_bits"] <= row["bits_asked"]
    assert len(files["record.jsonl"].read_text().splitlines()) == 4
    assert Image.open(files["front.png"]).width == front.WIDTH


def test_an_ablation_beside_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"bench ablation scorer --questions 2 --frames 16 --device cpu --plot {tmp_path / 'a.png'}"
    assert main([*line.split(), "--output", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr()
    assert "the paper (Table 11): cosine 64.1%, 48 ms" in shown.err
    result = json.loads((tmp_path / "a.json").read_text())
    assert (result["command"], result["source"]) == ("bench ablation", "Table 11")
    assert [row["label"] for row in result["evaluation"]["rows"]] == ["fp16", "cosine", "pearson", "euclidean"]
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_curves_in_the_terminal_and_as_a_picture() -> None:
    curves = {"mean": (0.5, 0.1, 0.1, 0.3), "layer 0": (0.25, 0.25, 0.25, 0.25)}
    made = by_hand.eval_result(by_hand.eval_row())
    result = CurveResult(
        command="bench ablation", name="first-tokens", source="Fig 7", says="shares", x_label="window",
        y_label="share", curves=curves, model=made.model, questions=2, frames=8, seed=0, versions={}, date="2026-01-01",
    )  # fmt: skip
    table = curve_table(result, ASCII)
    shape, first, highest = (next(iter(column.cells)) for column in table.columns[1:])
    assert (shape, first, highest) == ("@@@@@@@@" + "." * 16 + "=" * 8, "0.5", "0.5 at 0")
    image = Image.open(io.BytesIO(draw_curves(result))).convert("RGB")
    colours = {colour for _, colour in image.getcolors(1 << 20) or []}
    assert {(0, 0, 0), (213, 94, 0)} <= colours


def test_scales_have_round_values() -> None:
    assert decades([0.02, 0.3]) == (0.01, 1.0)
    assert decades([1.0]) == (1.0, 10.0)
    assert round_values(0.0, 1.0) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert round_values(0.913, 0.958) == pytest.approx([0.92, 0.93, 0.94, 0.95])


def test_errors_end_within_the_axes() -> None:
    rows = [by_hand.eval_row(label="p", kl_to_full=0.09, kl_standard_error=error) for error in (0.0, 0.05)]
    shown = [Image.open(io.BytesIO(front.draw_front(by_hand.eval_result(row, row)))).convert("L") for row in rows]
    # The dot of 0.09 nats, at the left: between 0.01 and 0.1 nearly at the top, between 0.01 and 1 in the middle.
    dots = [min(y for y in range(170, 600) if image.getpixel((130, y)) == 0) for image in shown]
    tops = [610 - 420 * math.log10(0.09 / 0.01) / decades for decades in (1, 2)]
    assert dots == pytest.approx([top - 7 for top in tops], abs=2)


def test_names_of_points_keep_clear_of_names_and_dots() -> None:
    image = Image.new("RGB", (1000, 600), "white")
    axes = Axes(ImageDraw.Draw(image), (0, 0, 1000, 560), (0, 10), (0, 10))
    for height in (5.0, 4.7):
        axes.point(5.0, height, (255, 0, 0), "nnnn")
    dark = image.getchannel("R").point(lambda red: 255 * (red < 128))  # the names
    ink = [y for y in range(600) if dark.crop((0, y, 1000, y + 1)).getbbox()]
    (_, upper), (_, lower) = axes.place(5.0, 5.0), axes.place(5.0, 4.7)
    gaps = [(a, b) for a, b in pairwise(ink) if b - a > 1]
    assert len(gaps) == 1 and gaps[0][0] < upper - 7 and gaps[0][1] > lower + 7


def test_points_of_a_front_stand_where_their_bits_and_kl_are() -> None:
    rows = [
        by_hand.eval_row(
            label=f"p @ {bits}", policy="p", bits_asked=bits, effective_bits=bits, kl_to_full=kl, kl_standard_error=None
        )
        for bits, kl in ((3.0, 0.1), (4.0, 0.01), (5.0, 0.0))
    ]
    full = by_hand.eval_row(label="fp16", policy="fp16", effective_bits=16.0, kl_to_full=0.0)
    image = Image.open(io.BytesIO(front.draw_front(by_hand.eval_result(full, *rows)))).convert("RGB")
    left, right, top, bottom = 130, 980, 190, 610  # of the plot, between 3 and 6 bits and 0.1 and 0.01 nats
    dots = [image.getpixel((left + (right - left) * place // 3, y)) for place, y in enumerate((top, bottom, bottom))]
    assert dots == [(0, 0, 0)] * 3
    assert image.getpixel((right - 20, top + 20)) == (255, 255, 255)


def test_our_policy_is_on_top_and_a_row_far_to_the_right_takes_no_room() -> None:
    rows = [
        by_hand.eval_row(label=name, policy=name, effective_bits=bits, kl_to_full=kl, kl_standard_error=None)
        for name, bits, kl in (("focus", 4.0, 0.1), ("rtn2", 4.0, 0.1), ("rtn4", 5.5, 0.01), ("rtn8", 9.5, 0.01))
    ]
    full = by_hand.eval_row(label="fp16", policy="fp16", effective_bits=16.0, kl_to_full=0.0)
    image = Image.open(io.BytesIO(front.draw_front(by_hand.eval_result(full, *rows)))).convert("RGB")
    left, right, top, bottom = 130, 980, 190, 610  # of the plot, between 4 and 6 bits and 0.1 and 0.01 nats
    # The first series, and the second around it.
    assert [image.getpixel(place) for place in ((left + 5, top), (left + 7, top))] == [(0, 0, 0), (213, 94, 0)]
    assert image.getpixel(((left + 3 * right) // 4, bottom)) == (0, 114, 178)  # the third
    assert image.getpixel((left + 9, bottom - 200)) == (255, 255, 255)
