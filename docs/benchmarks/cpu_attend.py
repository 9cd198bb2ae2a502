"""Decode attention on a CPU: wq's packed caches beside full precision and transformers' `QuantizedCache`.

    pip install hqq optimum-quanto           # without them their columns stay empty
    python docs/benchmarks/cpu_attend.py     # prints a table; writes cpu_attend.json and cpu_attend.md

A step is what one new token costs one layer: storing its key and value, and attention over everything stored. Every
candidate has as many layers as exceed the last cache level, as a model's layers do; the candidates of a row take turns,
so that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import DynamicLayer, HQQQuantizedLayer, QuantoQuantizedLayer

from wq_kernels import Segment, attend, pack

HERE = Path(__file__).parent
WINDOW = 32
HEADS = ((14, 2), (28, 4))
CHANNELS = (64, 128)
TOKENS = (1024, 4096, 16384)
PEERS = {"hqq": HQQQuantizedLayer, "quanto": QuantoQuantizedLayer}
COLUMNS = ("fp32 alone", "fp32", "bf16", "wq INT2", "hqq INT2", "quanto INT2", "wq INT4", "hqq INT4", "quanto INT4")
COLD_BYTES = 64 * 2**20
# What transformers' layers take at a time before they quantize again: one token less than a run of the benchmark.
RESIDUAL = 128

Step = Callable[[], object]


def library_step(layer: Any, query: Tensor, key: Tensor, value: Tensor) -> Step:
    """A filled layer of transformers, then attention over what it gives."""
    layer.update(key, value)
    new = key[:, :, :1], value[:, :, :1]

    def step() -> Tensor:
        keys, values = layer.update(*new)
        return scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    return step


def packed_step(bits: int, query: Tensor, key: Tensor, value: Tensor) -> Step:
    """Our segment and a run of full precision for the new tokens."""
    index = torch.arange(key.shape[2]).unsqueeze(0)
    segment = Segment(*(pack(x, index, bits=bits, window=WINDOW) for x in (key, value)))
    run = [torch.zeros_like(key[:, :, :RESIDUAL]) for _ in range(2)]
    length = 0

    def step() -> Tensor:
        nonlocal length
        run[0][:, :, length], run[1][:, :, length] = key[:, :, 0], value[:, :, 0]
        length += 1
        return attend(query, [segment], *run, length, scaling=query.shape[3] ** -0.5)

    return step


def make(name: str, query: Tensor, key: Tensor, value: Tensor) -> Step | None:
    """A layer of a candidate; None where its library is missing."""
    kind, _, bits = name.partition(" INT")
    if kind == "fp32 alone":
        return lambda: scaled_dot_product_attention(query, key, value, enable_gqa=True)
    if kind == "fp32":
        return library_step(DynamicLayer(), query, key, value)
    if kind == "bf16":
        return library_step(DynamicLayer(), *(x.bfloat16() for x in (query, key, value)))
    if kind == "wq":
        return packed_step(int(bits), query, key, value)
    # Groups as long as our windows; hqq's along the last axis, quanto's along channels, transformers' defaults.
    try:
        layer = PEERS[kind](nbits=int(bits), q_group_size=WINDOW, residual_length=RESIDUAL)
    except ImportError:
        return None
    return library_step(layer, query, key, value)


def row(heads: tuple[int, int], channels: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Median microseconds of a step of each candidate."""
    query_heads, kv_heads = heads
    nbytes = 2 * kv_heads * tokens * channels * 4
    layers = max(2, min(28, -(-COLD_BYTES // nbytes)))
    candidates: dict[str, list[Step]] = {}
    for name in COLUMNS:
        made = []
        for _ in range(layers):
            query, key, value = (
                torch.randn(1, count, length, channels)
                for count, length in ((query_heads, 1), (kv_heads, tokens), (kv_heads, tokens))
            )
            made.append(make(name, query, key, value))
        if made[0] is not None:
            candidates[name] = [step for step in made if step is not None]
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 1):
        for name, steps in candidates.items():
            start = time.perf_counter()
            for step in steps:
                step()
            if repeat:
                times[name].append((time.perf_counter() - start) * 1e6 / layers)
    us = {name: round(statistics.median(taken), 1) for name, taken in times.items()}
    return {"query_heads": query_heads, "kv_heads": kv_heads, "channels": channels, "tokens": tokens, "us": us}


def versions() -> dict[str, str]:
    """Versions of what was measured and what measured it."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("transformers", "hqq", "optimum-quanto"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def page(figures: dict[str, Any]) -> str:
    """The Markdown page: one table."""
    tools = ", ".join(f"{name} {number}" for name, number in figures["versions"].items())
    low, high = figures["load"]
    lines = [
        "# Decode attention on a CPU",
        "",
        "```",
        figures["command"],
        "```",
        "",
        f"{figures['cpu']}, {figures['threads']} threads, load average {low} to {high}; {tools}; {figures['date']}. "
        "Batch 1, one layer: microseconds from a new key and value to the output, medians of "
        f"{figures['repeats']} turns over caches that no processor cache holds. fp32 and bf16 are transformers' "
        "`DynamicCache` with PyTorch's `scaled_dot_product_attention`; alone is the attention without the copy that "
        "the cache makes of itself at every step. hqq and quanto are its `QuantizedCache` in float32 with groups of "
        f"{WINDOW}, which dequantizes everything at every step. wq takes windows of {WINDOW} and queries in float32."
        + figures.get("note", ""),
        "",
        "| heads | D | tokens | " + " | ".join(COLUMNS) + " |",
        "|---" * (3 + len(COLUMNS)) + "|",
    ]
    for each in figures["rows"]:
        cells = [f"{each['us'][name]:,.0f}" if name in each["us"] else "" for name in COLUMNS]
        head = f"| {each['query_heads']}/{each['kv_heads']} | {each['channels']} | {each['tokens']:,} | "
        lines.append(head + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7, help="at most 126, since the runs have that much room")
    parser.add_argument("--cpu", default=f"an {platform.machine()} CPU", help="in words, for the page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows, loads = [], []
    for channels in CHANNELS:
        for heads in HEADS:
            for tokens in TOKENS:
                rows.append(row(heads, channels, tokens, options.repeats))
                loads.append(round(os.getloadavg()[0], 1))
                print(heads, channels, tokens, rows[-1]["us"], flush=True)
    figures = {
        "command": " ".join(
            ["python docs/benchmarks/cpu_attend.py", *(f'"{x}"' if " " in x else x for x in sys.argv[1:])]
        ),
        "cpu": options.cpu,
        "threads": options.threads,
        "load": [min(loads), max(loads)],
        "repeats": options.repeats,
        "versions": versions(),
        "date": date.today().isoformat(),
        "rows": rows,
    }
    (HERE / "cpu_attend.json").write_text(json.dumps(figures, indent=2) + "\n")
    (HERE / "cpu_attend.md").write_text(page(figures))
    print(page(figures))


if __name__ == "__main__":
    main()
