"""The benchmarks beside peers on a GPU: what only a GPU runs, at small sizes. Figures are not looked at."""

from __future__ import annotations

import pytest
import torch

from wq_cli import bench, profile
from wq_cli.bench import paper, peers, random_weights
from wq_cli.bench.capacity import Capacity
from wq_cli.config import Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener, Screen
from wq_kernels import bench as kernels

pytestmark = pytest.mark.gpu


@pytest.fixture
def silent() -> Listener:
    return Listener(Screen(quiet=True))


def test_static_cache_steps_as_a_graph(silent: Listener) -> None:
    settings = Settings(Sampling(frames=8), runtime=Runtime(device="cuda"))
    result = bench.run(None, "what happens?", settings, silent, policies=["fp16"], decode_tokens=8, with_peers=True)
    rows = {row.policy: row for row in result.rows}
    assert {"fp16", "hf dynamic", "hf static"} <= set(rows), result.notices
    assert rows["hf static"].decode_ms_per_token < rows["hf dynamic"].decode_ms_per_token
    assert rows["hf static"].kl_to_full is not None and rows["hf static"].kl_to_full < 1e-3


def test_graph_of_a_static_cache_gives_the_tokens_of_its_steps(silent: Listener) -> None:
    settings = Settings(Sampling(frames=8), runtime=Runtime(device="cuda", dtype="float32"))
    subject = bench.open_subject(None, "what happens?", settings, silent, False)
    model, batch = subject.model, peers.Batch.of([subject.prompt], window=1)
    tokens = []
    with torch.inference_mode():
        for as_graph in (False, True):
            cache = peers._static(model.text_config, batch.embeds.shape[1] + 4)
            first = peers._prefill(model, batch, cache)[:, -1].argmax(dim=-1)
            step = peers._Step(model, cache, first, batch.next_position)
            tokens.append([int(token) for token in peers._repeated(step, 4, as_graph)])
    assert tokens[0] == tokens[1]


def test_allocator_is_limited_and_let_go() -> None:
    settings = Settings(runtime=Runtime(device="cuda"))
    model = random_weights.build(random_weights.tiny(profile.load(paper.PROFILE)), settings)
    lab = paper.Lab(model, settings, paper.TINY)
    fraction = torch.cuda.get_per_process_memory_fraction()
    limit = torch.cuda.memory_allocated() + 150 * 2**20
    sizes = [
        Capacity(model, Quantization(policy=policy), lambda count: [lab._prompt(count)], True).within(limit)
        for policy in ("fp16", "rtn2")
    ]
    assert 0 < sizes[0] < sizes[1]
    assert torch.cuda.get_per_process_memory_fraction() == fraction


def test_every_experiment_of_the_paper_runs(silent: Listener) -> None:
    sizes = paper.Sizes(batch=3, attention_batch=2, frames=8, search_frames=12, decode_tokens=4, memory_gb=(0.2,))
    result = paper.run(Settings(runtime=Runtime(device="cuda")), silent, sizes, tiny=True)
    assert [row.error for row in (*result.rows, *result.capacities)] == [None] * (len(result.rows) + 2)
    assert result.memory_from == "allocator"


def test_peers_of_the_kernels_run() -> None:
    for name in kernels.peers():
        row = kernels.attempt(kernels.measure_peer, kernels.Row(name, "bf16", 1, 1024), 1000.0)
        assert row.error is None and row.median_us and row.fraction, row.error
