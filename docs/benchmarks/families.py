"""A full-size model of every family but LLaVA-OneVision on a GPU: decode step and memory beside full precision.

    python docs/benchmarks/families.py

Writes families.json beside this file: the JSON of `wq bench --random-weights` for each profile with its own number of
frames, a model on each GPU at a time. A model that cannot be measured has its message in place of its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
PROFILES = (
    *("qwen2-vl-7b", "qwen2.5-vl-7b", "qwen3-vl-8b", "internvl3-8b", "llava-1.5-7b", "llava-1.6-vicuna-7b"),
    *("llava-next-video-7b", "smolvlm2-2.2b"),
)
POLICIES = "fp16,windowquant"
SECONDS = 120


def measure(profile: str, gpu: int) -> dict[str, Any]:
    """`wq bench` of a profile in a process of its own: what one model leaves behind is no other's."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "bench.json"
        command = [sys.executable, "-m", "wq_cli", "bench", "-p", profile, "--random-weights", "--policies", POLICIES]
        command += ["--decode-tokens", "24", "--fidelity-tokens", "0", "--quiet", "--output", str(output)]
        alone = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=alone, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"more than {SECONDS} s"}
        if not output.exists():
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return {"error": next((line for line in said if line.startswith("error: ")), said[-1])}
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return result


def main() -> None:
    """Every profile, as many at a time as there are GPUs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", nargs="+", default=PROFILES)
    parser.add_argument("--output", type=Path, default=HERE / "families.json")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("an NVIDIA GPU is needed")
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for profile in chosen.profiles:
        waiting.put(profile)
    models: dict[str, dict[str, Any]] = {}

    def work(gpu: int) -> None:
        while True:
            try:
                profile = waiting.get_nowait()
            except queue.Empty:  # another worker may have taken the last one
                return
            models[profile] = measure(profile, gpu)
            rows = models[profile].get("rows", [])
            times = [f"{row['policy']} {row['decode_ms_per_token']:.2f} ms" for row in rows]
            print(profile, *times, models[profile].get("error", ""), flush=True)

    workers = [threading.Thread(target=work, args=(gpu,)) for gpu in range(torch.cuda.device_count())]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found = {name: models[name] for name in chosen.profiles}
    chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
