"""Writes the pages of docs/benchmarks from the JSON files in it: `python docs/make_benchmarks.py`.

Names after it, as in `python docs/make_benchmarks.py scenes ablations/scorer`, are measured again first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import evaluations
import speed

FOLDER = Path(__file__).parent / "benchmarks"
HEAD = """\
# Benchmarks

Made by `python docs/make_benchmarks.py` from the JSON files in this folder, the output of the commands shown. \
Bits are effective bits: everything stored for the visual tokens, scales, minima and full-precision windows \
included. Fidelity is read through the packed cache only: video first, sealed, then question and answer. The tables of \
every family, of the growing video and of the paper's experiments are of the attention before it was rewritten lane by \
lane, which the tables of a whole model and of decode attention are of; since these, the sums of weights that minima \
are multiplied by are kept in two float16 instead of one, some 25 instructions more for every 16 windows.

More: [reading 100 frames beside decord and torchcodec](video.md), [fuzzing the video input](fuzz.md), \
[language models with facts in place of a video](text_models.md), \
[decode attention on a CPU](cpu_attend.md), [the paper's experiments on the demo model](ablations.md).
"""


def main() -> None:
    """The pages from what is there."""
    for name in sys.argv[1:]:
        evaluations.measure(name)
    parts = [HEAD]
    for name, section in (
        ("scenes", evaluations.scenes),
        ("demo", speed.clip),
        ("llava-onevision-7b-random", speed.whole_step),
        ("families", speed.families),
        ("scaling", speed.scaling),
        ("paper", speed.paper),
        ("prefill", speed.prefill),
        ("kernels", speed.kernels),
    ):
        path = FOLDER / f"{name}.json"
        if path.exists():
            parts.append(section(json.loads(path.read_text(encoding="utf-8"))))
    (FOLDER / "README.md").write_text("\n".join(parts), encoding="utf-8")
    evaluations.write_ablations()


if __name__ == "__main__":
    main()
