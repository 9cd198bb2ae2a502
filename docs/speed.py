"""Pages' sections on memory and speed, from the JSON of `wq bench` and the commands below it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from evaluations import made_with, table

from wq_cli.report.paper import number


def clip(result: dict[str, Any]) -> str:
    """`wq bench` with the demo model."""
    heads = ["policy", "bits", "KV, MiB", "search, ms", "seal, ms", "first token, ms", "token, ms", "KL", "same token"]
    rows = [
        [
            row["policy"],
            f"{row['effective_bits']:.2f}",
            f"{row['kv_bytes'] / 2**20:.2f}",
            figure(row["search_ms"], 1),
            figure(row["seal_ms"], 0),
            f"{row['first_token_ms']:.0f}",
            f"{row['decode_ms_per_token']:.1f}",
            "" if row["kl_to_full"] is None else f"{row['kl_to_full']:.2g}",
            "" if row["greedy_agreement"] is None else f"{row['greedy_agreement']:.0%}",
        ]
        for row in result["rows"]
    ]
    return f"""\
## One clip of 100 frames

```
wq bench --frames 100{peers(result)} --output docs/benchmarks/demo.json
```

{made_with(result)} Batch {result["batch"]}, {result["visual_tokens"]:,} visual tokens, {result["decode_tokens"]} \
tokens decoded, KL and agreement over {result["fidelity_tokens"]} tokens. On two shared CPU cores, so the times do not \
measure the methods.

{table(heads, rows)}
"""


def families(models: dict[str, Any]) -> str:
    """docs/benchmarks/families.py on a GPU."""
    heads = [
        "model",
        "visual tokens",
        "policy",
        "bits",
        "KV, MiB",
        "peak, GiB",
        "seal, ms",
        "first token, ms",
        "token, ms",
    ]
    rows, missing, last = [], [], None
    for name, result in models.items():
        if "error" in result:
            missing.append(f"\n- {name}: {result['error']}")
            continue
        last = result
        rows += [
            [
                name if row is result["rows"][0] else "",
                f"{result['visual_tokens']:,}" if row is result["rows"][0] else "",
                row["policy"],
                f"{row['effective_bits']:.2f}",
                figure(row["kv_bytes"] / 2**20, 0),
                f"{row['peak_bytes'] / 2**30:.1f}",
                figure(row["seal_ms"], 1),
                f"{row['first_token_ms']:.0f}",
                f"{row['decode_ms_per_token']:.2f}",
            ]
            for row in result["rows"]
        ]
    assert last is not None
    return f"""\
## One full-size model of every family on a GPU

```
python docs/benchmarks/families.py
```

{last["versions"]["card"]}, {last["model"]["dtype"]}, torch {last["versions"]["torch"]}, transformers \
{last["versions"]["transformers"]}; {last["date"]}. Random weights, one request, each profile's own number of frames, \
{last["decode_tokens"]} tokens decoded as one CUDA graph. LLaVA-OneVision is in the table above. KV: the whole cache, \
text and room for the answer included; peak: weights included. At these lengths a step is bound by the weights and by \
small kernels, so that a smaller cache shows in the memory and not in the time.

{table(heads, rows)}
{"".join(missing)}
"""


def figure(value: float | None, digits: int) -> str:
    """Nothing for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def peers(result: dict[str, Any]) -> str:
    """The option that adds the rows of transformers' caches, where there are some."""
    return " --peers" if any(row.get("is_peer") for row in result["rows"]) else ""


def whole_step(result: dict[str, Any]) -> str:
    """`wq bench --random-weights` on a GPU."""
    heads = ["policy", "bits", "KV, MiB", "peak, GiB", "search, ms", "seal, ms", "first token, ms", "token, ms"]
    rows = [
        [
            row["policy"],
            f"{row['effective_bits']:.2f}",
            figure(row["kv_bytes"] / 2**20, 0),
            f"{row['peak_bytes'] / 2**30:.1f}",
            figure(row["search_ms"], 1),
            figure(row["seal_ms"], 1),
            f"{row['first_token_ms']:.0f}",
            f"{row['decode_ms_per_token']:.2f}",
        ]
        for row in result["rows"]
    ]
    names = ",".join(row["policy"] for row in result["rows"] if not row.get("is_peer"))
    compiled = [row["compile_ms"] for row in result["rows"] if row.get("compile_ms") is not None]
    flag = " --compile" if compiled else ""
    how = f", the decoder's layers compiled ({max(compiled) / 1e3:.0f} s the first time)" if compiled else ""
    notes = "".join(f"\n- {notice}" for notice in result["notices"])
    return f"""\
## A whole model on a GPU

```
wq bench -p llava-onevision-7b --random-weights --frames 100 --policies {names}{peers(result)}{flag} \\
    --decode-tokens {result["decode_tokens"]} --fidelity-tokens {result["fidelity_tokens"]} \\
    --output docs/benchmarks/llava-onevision-7b-random.json
```

{made_with(result)} Batch {result["batch"]}, {result["visual_tokens"]:,} visual tokens, decoding \
as one CUDA graph a step{how}; `hf`: transformers' own caches and attention. Random weights cost what trained ones do; \
fidelity is not measured on them.{notes}

{table(heads, rows)}
"""


def kernels(result: dict[str, Any]) -> str:
    """`wq bench kernels`."""
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
    libraries = ", ".join(f"{name} {machine[name]}" for name in ("torch", "triton", "flashinfer") if name in machine)
    return f"""\
## Decode attention

```
wq bench kernels --output docs/benchmarks/kernels.json
```

{machine["gpu"]}, {libraries}, {machine["date"]}; copy bandwidth {machine["copy_gb_per_second"] / 1e3:.2f} TB/s. 28 \
query and 4 KV heads of 128, one layer: microseconds, the share of them that the bytes need at copy bandwidth, and in \
brackets how many times as fast as the fastest bf16/fp16 peer of the same row. `mix` is 2% raw, 9% INT4, 89% \
INT2.

{table(["batch x tokens", "dtype", *names], rows)}
"""


def scaling(result: dict[str, Any]) -> str:
    """`wq bench scaling`."""
    rows = [
        [
            str(step["frames"]),
            f"{step['visual_tokens']:,}",
            row["policy"],
            f"{row['effective_bits']:.2f}",
            figure(row["kv_bytes"] / 2**20, 0),
            f"{row['peak_bytes'] / 2**30:.1f}",
            f"{row['decode_ms_per_token']:.2f}",
        ]
        for step in result["rows"]
        for row in step["policies"]
    ]
    frames = ",".join(str(step["frames"]) for step in result["rows"])
    return f"""\
## While the video grows

```
wq bench scaling -p llava-onevision-7b --random-weights --frames {frames} --batch {result["batch"]} \\
    --plot docs/benchmarks/scaling.png --output docs/benchmarks/scaling.json
```

{made_with(result)} Batch {result["batch"]}, {result["decode_tokens"]} tokens decoded (Figs 1b and 2 of WindowQuant).

![time per token against KV size, memory against frames](scaling.png)

{table(["frames", "tokens", "policy", "bits", "KV, MiB", "peak, GiB", "token, ms"], rows)}
"""


def paper(result: dict[str, Any]) -> str:
    """`wq bench paper`."""
    rows = [
        [
            row["experiment"],
            row["variant"],
            number(row["paper"]),
            row["error"] or number(row["ours"]),
            row["unit"],
            figure(row["effective_bits"], 2),
        ]
        for row in result["rows"]
    ]
    cards = [
        [f"{row['memory_gb']:g} GB", row["policy"], *(row["error"] or f"{row[size]:,}" for size in ("batch", "frames"))]
        for row in result["capacities"]
    ]
    filled = any(row["error"] is None for row in result["capacities"])
    # With a time after which no card is begun, where that kept some from being filled.
    unbegun = [row["error"].split()[2] for row in result["capacities"] if str(row["error"]).startswith("not begun: ")]
    limit = f"--seconds {unbegun[0]} " if unbegun else ""
    capacities = f"""\
What a card holds, found by trying with PyTorch's allocator limited to so many bytes, to within 2%: the most requests \
of {result["batch_frames"]} frames side by side, and the most frames of one request. The frames are those that memory \
holds, more than the model has positions for. Both ran without the arithmetic of matrix products and of attention, \
whose tensors were there: peaks of 64 requests and of 64 frames differ by less than 1% from those with it.

{table(["card", "policy", f"batch of {result['batch_frames']} frames", "frames"], cards)}"""
    return f"""\
## The paper's experiments on speed and memory

```
wq bench paper {limit}--output docs/benchmarks/paper.json
```

{made_with(result)} The paper (arXiv 2605.02262) measured on its own card, so that the two columns tell how the \
experiments came out, not which card is faster. Bits are those of our cache.

{table(["experiment", "", "paper", "here", "unit", "bits"], rows)}

{capacities if filled else "What cards of 24, 48 and 80 GB hold was not measured in this run."}
"""


def prefill(result: dict[str, Any]) -> str:
    """docs/benchmarks/prefill.py."""
    rows = [
        [row["part"], f"{row['ms']:,.2f}", "" if row["peak_bytes"] is None else figure(row["peak_bytes"] / 2**20, 0)]
        for row in result["rows"]
    ]
    shares = "; ".join(
        f"{name}: sealing is {facts['seal_share']:.1%} of the prefill, {facts['effective_bits']:.2f} bits"
        for name, facts in result["caches"].items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"""\
## From frames to a sealed cache

```
{result["command"].strip()}
```

{versions}; {result["date"]}. {result["frames"]} frames, {result["visual_tokens"]:,} visual tokens, weights \
{result["weight_bytes"] / 2**30:.1f} GiB. Memory is the allocator's peak above what was there before. {shares}.

{table(["part", "ms", "peak, MiB"], rows)}
"""
