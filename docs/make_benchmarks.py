"""Writes the pages of docs/benchmarks from the JSON files in it: `python docs/make_benchmarks.py`.

Names after it, as in `python docs/make_benchmarks.py scenes ablations/scorer`, are measured again first.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import evaluations
from evaluations import made_with, table

FOLDER = Path(__file__).parent / "benchmarks"
HEAD = """\
# Benchmarks

Made by `python docs/make_benchmarks.py` from the JSON files in this folder, the output of the commands shown. \
Bits are effective bits: everything stored for the visual tokens, scales, minima and full-precision windows \
included. Fidelity is read through the packed cache only: video first, sealed, then question and answer.

More: [reading 100 frames beside decord and torchcodec](video.md), [fuzzing the video input](fuzz.md), \
[decode attention on a CPU](cpu_attend.md), [the paper's experiments on the demo model](ablations.md).
"""


def bench(result: dict[str, Any]) -> str:
    rows = [
        [
            row["policy"],
            f"{row['effective_bits']:.2f}",
            f"{row['kv_bytes'] / 2**20:.2f}",
            f"{row['search_ms']:.1f}",
            f"{row['seal_ms']:.0f}",
            f"{row['first_token_ms']:.0f}",
            f"{row['decode_ms_per_token']:.1f}",
            f"{row['kl_to_full']:.2g}",
            f"{row['greedy_agreement']:.0%}",
        ]
        for row in result["rows"]
    ]
    heads = ["policy", "bits", "KV, MiB", "search, ms", "seal, ms", "first token, ms", "token, ms", "KL", "same token"]
    return f"""\
## One clip of 100 frames

```
wq bench --frames 100 --output docs/benchmarks/demo.json
```

{made_with(result)} Batch {result["batch"]}, {result["visual_tokens"]:,} visual tokens, {result["decode_tokens"]} \
tokens decoded, KL and agreement over {result["fidelity_tokens"]} tokens. On two shared CPU cores, so the times do not \
measure the methods.

{table(heads, rows)}
"""


def whole_step(result: dict[str, Any]) -> str:
    rows = [
        [
            row["policy"],
            f"{row['effective_bits']:.2f}",
            f"{row['kv_bytes'] / 2**20:,.0f}",
            f"{row['peak_bytes'] / 2**30:.1f}",
            f"{row['search_ms']:.1f}",
            f"{row['seal_ms']:.1f}",
            f"{row['first_token_ms']:.0f}",
            f"{row['decode_ms_per_token']:.2f}",
        ]
        for row in result["rows"]
    ]
    heads = [
        "policy", "bits", "KV, MiB", "peak, GiB", "search, ms", "seal, ms", "first token, ms", "token, ms",
    ]  # fmt: skip
    names = ",".join(row["policy"] for row in result["rows"])
    return f"""\
## A whole model on a GPU

```
wq bench -p llava-onevision-7b --random-weights --frames 100 --policies {names} \\
    --decode-tokens {result["decode_tokens"]} --fidelity-tokens 0 \\
    --output docs/benchmarks/llava-onevision-7b-random.json
```

{made_with(result)} Batch {result["batch"]}, {result["visual_tokens"]:,} visual tokens, decoding \
as one CUDA graph a step. Random weights cost what trained ones do; fidelity is not measured on them.

{table(heads, rows)}
"""


def kernels(result: dict[str, Any]) -> str:
    machine = result["machine"]
    shapes: dict[tuple[int, int, str], dict[str, Any]] = defaultdict(dict)
    for row in result["rows"]:
        shapes[row["batch"], row["tokens"], row["dtype"]][row["name"]] = row
    names = list(dict.fromkeys(row["name"] for row in result["rows"] if not row["name"].startswith("pack")))
    rows = []
    for (batch, tokens, dtype), found in shapes.items():
        cells = [f"{batch} x {tokens:,}", dtype]
        for name in names:
            row = found.get(name, {"median_us": None})
            if row["median_us"] is None:
                cells.append("refused")
            elif row["speedup"] is None:
                cells.append(f"{row['median_us']:.0f}, {row['fraction']:.0%}")
            else:
                cells.append(f"{row['median_us']:.0f}, {row['fraction']:.0%} ({row['speedup']:.2f}x)")
        rows.append(cells)
    return f"""\
## Decode attention

```
wq bench kernels --output docs/benchmarks/kernels.json
```

{machine["gpu"]}, torch {machine["torch"]}, triton {machine["triton"]}, {machine["date"]}; copy bandwidth \
{machine["copy_gb_per_second"] / 1e3:.2f} TB/s. 28 query and 4 KV heads of 128, one layer: microseconds, the share of \
them that the bytes need at copy bandwidth, and in brackets how many times as fast as the fastest bf16/fp16 peer of \
the same row. `mix` is 2% raw, 9% INT4, 89% INT2.

{table(["batch x tokens", "dtype", *names], rows)}
"""


def main() -> None:
    """The pages from what is there."""
    for name in sys.argv[1:]:
        evaluations.measure(name)
    parts = [HEAD]
    for name, section in (
        ("scenes", evaluations.scenes),
        ("demo", bench),
        ("llava-onevision-7b-random", whole_step),
        ("kernels", kernels),
    ):
        path = FOLDER / f"{name}.json"
        if path.exists():
            parts.append(section(json.loads(path.read_text(encoding="utf-8"))))
    (FOLDER / "README.md").write_text("\n".join(parts), encoding="utf-8")
    evaluations.write_ablations()


if __name__ == "__main__":
    main()
