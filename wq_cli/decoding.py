"""Answer tokens one after the other: the step, its CUDA graph, and drawing from logits.

A step of a language model is hundreds of small kernels, and launching them takes ten times as long as running them.
On one GPU the second step is therefore recorded as a CUDA graph and every later one replays it: all that changes from
step to step lies in buffers on the device (the cache counts its places there, see `WindowCache.stepping`).

A replay costs the host next to nothing, so it is launched before the token that it starts from is looked at: the GPU
goes from one step to the next without waiting for the host. At the end of an answer that is one step too many, which
is taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import wq_kernels
from wq_cli.device import HostCopy
from wq_cli.engine import rewind, run_decoder, windowed_attention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wq_cli.cache import WindowCache
    from wq_cli.config import Generation
    from wq_cli.engine import Prefilled
    from wq_cli.models.base import VideoModel


@torch.inference_mode()
def decode(
    model: VideoModel, state: Prefilled, settings: Generation, stop_at_eos: bool = True
) -> Iterator[torch.Tensor]:
    """Answer tokens on the host, int64 [B] each, the first from the prefill's logits.

    Stops after a token with which every row has ended (unless told not to), or after `max_new_tokens`. A row that has
    ended repeats its last token. Sets `state.graph` to how the steps ran. Once this ends or is closed, the cache holds
    every token but the last that came out.
    """
    step, ahead = Step(model, state, settings, stop_at_eos), False
    try:
        with state.cache.stepping(settings.max_new_tokens - 1):
            for steps_left in reversed(range(settings.max_new_tokens)):
                newest, ahead = HostCopy(step.token), False
                if steps_left and step.is_graph:
                    step()
                    ahead = True
                yield newest.get()
                if step.ends.issuperset(newest.get().tolist()):
                    return
                if steps_left and not ahead:
                    step()
    finally:
        if ahead:
            rewind(state, 1)


class Step:
    """One token more for every row, from the token before.

    Attributes:
        token: The newest tokens, int64 [B].
        ends: Tokens that end an answer.
    """

    def __init__(self, model: VideoModel, state: Prefilled, settings: Generation, stop_at_eos: bool) -> None:
        device = state.logits.device
        self._model, self._state, self._temperature = model, state, settings.temperature
        self._generator = torch.Generator(device=device).manual_seed(settings.seed)
        self.ends = model.eos_ids if stop_at_eos else frozenset()
        self._ends = torch.tensor(sorted(self.ends), dtype=torch.int64, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = False
        if settings.compile_layers:
            from wq_cli.compiled import CompiledDecoder  # loads the compiler

            state.compiled = CompiledDecoder(model, state.cache)
        state.position = state.position.clone()
        state.graph = obstacle(model, state.cache, settings.max_new_tokens - 1)
        self.token = draw(state.logits, self._temperature, self._generator)

    @property
    def is_graph(self) -> bool:
        """Whether the next step is a replay."""
        return self._graph is not None

    def __call__(self) -> None:
        """Run the step: eagerly at first, which compiles what it needs, then as a graph where one can be made."""
        with windowed_attention(self._model):
            if self._graph is None and self._warm and self._state.graph is None:
                self._record()
            if self._graph is not None:
                self._graph.replay()
            else:
                self._run()
                self._warm = True
        self._state.cache.count_step()

    def _run(self) -> None:
        """Everything on the device, nothing waited for, results in place."""
        state = self._state
        state.cache.advance()
        embeds, positions = self._model.embed(self.token)[:, None], state.position[:, None]
        if state.compiled is None:
            hidden = run_decoder(self._model, embeds, positions, state.cache)
        else:
            hidden = state.compiled(embeds, positions)
        drawn = draw(self._model.logits(hidden[:, -1]), self._temperature, self._generator)
        has_ended = (self.token[:, None] == self._ends).any(dim=1)
        self.token.copy_(torch.where(has_ended, self.token, drawn))
        state.position += 1

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        if self._temperature:
            graph.register_generator_state(self._generator)
        try:
            with torch.cuda.graph(graph):
                self._run()
        except RuntimeError as error:
            self._state.graph = f"step by step, since it cannot be recorded: {str(error).splitlines()[0]}"
            return
        self._graph = graph
        self._state.graph = "CUDA graph"


def obstacle(model: VideoModel, cache: WindowCache, steps: int) -> str | None:
    """Why so many steps cannot be one CUDA graph; None when they can."""
    seen = getattr(model.text_config, "sliding_window", None)
    if seen is not None and cache.layers[0].length + steps > seen:
        # A graph would go on past the token with which attention refuses.
        return f"step by step, since layers that see the last {seen} tokens only cannot see all of so long an answer"
    if model.device.type != "cuda":
        return f"step by step, on {model.device.type}"
    if len({layer.device for layer in cache.layers}) > 1:
        return "step by step, since the layers lie on several GPUs"
    if any(not isinstance(segment, wq_kernels.Segment) for layer in cache.layers for segment in layer.segments):
        return "step by step, since no kernel reads what this method stores"
    backend = wq_kernels.choose_backend(model.device, cache.layers[0].run[0].dtype)
    if backend.name == "torch":
        return f"step by step, since the cache runs in PyTorch: {backend.reason}"
    return None


def draw(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """Tokens [B] from logits [B, vocabulary]: the likeliest ones at temperature 0, else at random."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    # From the likeliest downwards, so that a tiny temperature makes no two infinities.
    below = (logits - logits.amax(dim=-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)
    return torch.multinomial(below.softmax(dim=-1), 1, generator=generator)[:, 0]
