"""Speed and memory experiments of the WindowQuant paper (arXiv 2605.02262) on random weights (`wq bench paper`).

The paper ran LLaVA-OneVision-7B, whose architecture is filled with random weights here; visual tokens are random too,
since only their number matters. What a card holds is found with an allocator that is not given more (see `capacity`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from wq_cli import describe, engine, pipeline
from wq_cli import profile as profiles
from wq_cli.bench import SCENE_SIZE, made_with, random_weights
from wq_cli.bench.capacity import Capacity
from wq_cli.bench.measure import measure
from wq_cli.bench_results import CapacityRow, PaperResult, PaperRow
from wq_cli.blocks import read
from wq_cli.config import Generation, Quantization, Settings
from wq_cli.errors import first_line
from wq_cli.models.base import Prompt, VideoModel, VisualFeatures
from wq_cli.models.sizing import VisualCost
from wq_kernels import attend

if TYPE_CHECKING:
    from wq_cli.cache import WindowCacheLayer
    from wq_cli.pipeline import Listener

PROFILE = "llava-onevision-7b"
POLICIES = ("fp16", "windowquant")


@dataclass(frozen=True)
class Sizes:
    """How large the experiments are: the paper's own figures unless they run on a tiny model.

    Attributes:
        batch, attention_batch: Requests side by side, of `frames` frames each.
        search_frames: Frames of the request that is searched.
        memory_gb: Cards, 10**9 bytes each.
    """

    batch: int = 60
    attention_batch: int = 20
    frames: int = 5
    search_frames: int = 100
    decode_tokens: int = 32
    memory_gb: tuple[float, ...] = (24, 48, 80)


TINY = Sizes(batch=3, attention_batch=2, frames=6, search_frames=12, decode_tokens=3, memory_gb=(0.0795, 0.08))


def run(settings: Settings, listener: Listener, sizes: Sizes, tiny: bool, seconds: float | None = None) -> PaperResult:
    """All experiments; one that fails is a row with the reason.

    Args:
        settings: Device, dtype, and how windows are quantized.
        listener: Told of a stage per experiment.
        sizes: How large they are.
        tiny: Take a model of two small layers.
        seconds: Begin to fill no card after this time.

    Raises:
        WqError: The model cannot be built here.
    """
    started = time.perf_counter()
    profile = profiles.load(PROFILE)
    listener.stage("load")
    with pipeline.backend(settings):
        model = random_weights.build(random_weights.tiny(profile) if tiny else profile, settings)
        lab = Lab(model, settings, sizes)
        rows = []
        for name, experiment in lab.experiments():
            listener.stage(name)
            rows += experiment()
        capacities = []
        for gigabytes in sizes.memory_gb:
            listener.stage(f"{gigabytes:g} GB")
            for policy in POLICIES:
                if seconds is not None and time.perf_counter() - started > seconds:
                    capacities.append(CapacityRow(gigabytes, policy, error=f"not begun: {seconds:g} s were over"))
                else:
                    capacities.append(lab.capacity(gigabytes, policy))
    return PaperResult(
        command="bench paper",
        model=describe.model(model, f"{profile.name}{', tiny' if tiny else ''} (random weights)", is_demo=False),
        rows=tuple(rows),
        capacities=tuple(capacities),
        memory_from="allocator" if model.device.type == "cuda" else "counted",
        batch_frames=sizes.frames,
        settings=describe.policy(settings.quantization).settings,
        versions=made_with(model),
        date=date.today().isoformat(),
    )


class Lab:
    """The experiments over one model."""

    def __init__(self, model: VideoModel, settings: Settings, sizes: Sizes) -> None:
        self._model, self._settings, self._sizes = model, settings, sizes
        blank = np.zeros((2, SCENE_SIZE, SCENE_SIZE, 3), dtype=np.uint8)
        self._cost = VisualCost.of(model, blank, np.arange(2.0))

    def experiments(self) -> Iterator[tuple[str, Callable[[], list[PaperRow]]]]:
        """Names of stages and what makes their rows."""
        sizes = self._sizes
        batch = f"decoding, batch {sizes.batch} x {sizes.frames} frames"
        for variant, changes, paper in (
            ("fp16", {"policy": "fp16"}, 444.0),
            ("windowquant", {}, 1250.0),
            ("windowquant, windows in the order of time", {"reorder": False}, 500.0),
        ):
            row = PaperRow(batch, variant, "tokens/s", paper)
            yield variant, lambda row=row, changes=changes: self._throughput(row, changes)  # type: ignore[misc]
        yield "attention", self._attention
        yield "search", self._search

    def _throughput(self, row: PaperRow, changes: dict[str, object]) -> list[PaperRow]:
        """Table 8: tokens of all requests a second."""
        settings = self._changed(**changes)
        prompts = [self._prompt(self._sizes.frames)] * self._sizes.batch
        with _reported([row]) as made:
            found = measure(self._model, prompts, settings, 0, None).row
            made[:] = [replace(row, ours=found.tokens_per_second, effective_bits=found.effective_bits)]
        return made

    def _attention(self) -> list[PaperRow]:
        """Attention of one new token over a sealed layer: in one pass, or dequantized first."""
        sizes = self._sizes
        name = f"attention of a layer, batch {sizes.attention_batch} x {sizes.frames} frames"
        rows = [PaperRow(name, "fused", "ms", 0.82), PaperRow(name, "dequantized first", "ms", 1.25)]
        with _reported(rows) as made, torch.inference_mode():
            prompts = [self._prompt(sizes.frames)] * sizes.attention_batch
            cache = self._prefilled(prompts).cache
            heads = self._model.text_config.num_attention_heads
            key = cache.layers[0].run[0]
            query = torch.randn(len(prompts), heads, 1, key.shape[3], dtype=key.dtype, device=key.device)
            one, two = fused(query, cache.layers[0]), dequantized_first(query, cache.layers[0])
            if not float((one - two).norm()) <= 0.02 * float(two.norm()):
                raise ArithmeticError("both ways give different outputs")
            for index, way in enumerate((fused, dequantized_first)):
                calls = [lambda layer=layer, way=way: way(query, layer) for layer in cache.layers]
                made[index] = replace(rows[index], ours=median_ms(calls), effective_bits=cache.visual_bits)
        return made

    def _search(self) -> list[PaperRow]:
        """Section 4: scores and plans of all layers, and the bytes of scales and minima."""
        name = f"{self._sizes.search_frames} frames, batch 1"
        rows = [PaperRow(name, "search", "ms", 48.0), PaperRow(name, "metadata", "MB", 61.4)]
        with _reported(rows) as made:
            prompts, times = [self._prompt(self._sizes.search_frames)], []
            for _ in range(4):  # the first one compiles
                request = self._request(prompts, self._settings.quantization)
                cache = engine.prefill(self._model, request).cache
                times.append(request.found.ms)
            figures = statistics.median(times[1:]), cache.metadata_nbytes / 1e6
            pairs = zip(rows, figures, strict=True)
            made[:] = [replace(row, ours=ours, effective_bits=cache.visual_bits) for row, ours in pairs]
        return made

    def capacity(self, gigabytes: float, policy: str) -> CapacityRow:
        """Most requests side by side and most frames of one, on a card."""
        sizes = self._sizes
        quantization = self._changed(policy=policy).quantization
        frames = Capacity(self._model, quantization, lambda count: [self._prompt(count)], without_arithmetic=True)
        alike = Capacity(
            self._model, quantization, lambda count: [self._prompt(sizes.frames)] * count, without_arithmetic=True
        )
        row, limit = CapacityRow(gigabytes, policy), int(gigabytes * 1e9)
        try:
            row = replace(row, batch=alike.within(limit))
            return replace(row, frames=frames.within(limit))
        except Exception as error:  # one card must not cost the others
            return replace(row, error=first_line(error))

    def _prompt(self, frames: int) -> Prompt:
        """A question about random visual tokens, as many as so many frames have."""
        count, model = self._cost.tokens(frames), self._model
        embeds = torch.randn(count, model.text_config.hidden_size, dtype=model.dtype, device=model.device)
        visual = VisualFeatures(embeds, np.zeros(count, dtype=np.int64), np.arange(float(frames)))
        return random_weights.prompt(model, visual)

    def _changed(self, **changes: object) -> Settings:
        generation = Generation(max_new_tokens=self._sizes.decode_tokens + 1)
        quantization = replace(self._settings.quantization, **changes)  # type: ignore[arg-type]
        return replace(self._settings, quantization=quantization, generation=generation)

    def _request(self, prompts: list[Prompt], settings: Quantization) -> engine.Request:
        return engine.prepare(self._model, prompts, settings, room=self._sizes.decode_tokens)

    def _prefilled(self, prompts: list[Prompt]) -> engine.Prefilled:
        return engine.prefill(self._model, self._request(prompts, self._settings.quantization))


@contextmanager
def _reported(rows: list[PaperRow]) -> Iterator[list[PaperRow]]:
    """Rows to fill in; those that were not when an error came say which one."""
    made = list(rows)
    try:
        yield made
    except Exception as error:  # one experiment must not cost the others
        made[:] = [row if row.ours is not None else replace(row, error=first_line(error)) for row in made]


def fused(query: torch.Tensor, layer: WindowCacheLayer) -> torch.Tensor:
    """Attention over packed segments and run in one pass, [B, Hq, 1, D]."""
    segments, key, value, length, mask = layer.attended(*layer.run)
    return attend(query, segments, key, value, length, scaling=query.shape[-1] ** -0.5, raw_mask=mask)


def dequantized_first(query: torch.Tensor, layer: WindowCacheLayer) -> torch.Tensor:
    """The same over keys and values that are written to memory first; their order does not matter."""
    key, value = layer.run
    keys = torch.cat([*(read(s.key, key.dtype) for s in layer.segments), key[:, :, : layer.raw_length]], dim=2)
    values = torch.cat([*(read(s.value, value.dtype) for s in layer.segments), value[:, :, : layer.raw_length]], dim=2)
    return scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def median_ms(calls: Sequence[Callable[[], torch.Tensor]]) -> float:
    """Median time of one of the calls: all of them in a CUDA graph on a GPU, one after the other elsewhere."""
    outputs = [call() for call in calls]  # compiles what layers differ in
    if outputs[0].device.type == "cuda":
        from wq_kernels.bench import median_us

        return median_us(list(calls)) / 1e3
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for call in calls:
            call()
        times.append((time.perf_counter() - started) * 1e3 / len(calls))
    return statistics.median(times)
