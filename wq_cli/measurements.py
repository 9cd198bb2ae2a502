"""What offline policies want to know of a model, measured on one prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli import decoding, engine
from wq_cli.bench.measure import fidelity, forced
from wq_cli.cache import WindowCache
from wq_cli.codecs import ChannelInWindow
from wq_cli.config import Generation, Quantization
from wq_cli.errors import UsageError
from wq_cli.policies import focus, kvmix, kvtuner
from wq_cli.policies.base import FULL_PRECISION, LayerPlan
from wq_cli.recorded import Recording
from wq_cli.rotary import Rotary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wq_cli.models.base import Prompt, VideoModel

ANSWER_TOKENS = 16
DEFAULT = "windowquant"
RANGES = ("key_low", "key_high", "value_low", "value_high", "key_max", "query_max")
Measured = dict[str, "NDArray[np.float64]"]
Measurement = Callable[["VideoModel", "Prompt"], Measured]


class _OneLayer(kvtuner.KvTuner):
    """One layer at a pair of widths, all others at full precision."""

    layer = 0
    pair = (FULL_PRECISION, FULL_PRECISION)

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        pair = self.pair if layer == self.layer else (FULL_PRECISION, FULL_PRECISION)
        return self._same_width(relevance.shape[1], *pair)


def pair_costs(model: VideoModel, prompt: Prompt) -> Measured:
    """KL to full precision over its answer when one layer alone is quantized, [L, 9] for each of KVTuner's modes."""
    recording = Recording(model, prompt)
    return {axes: costs_of_mode(model, recording, prompt, axes) for axes in ("kivi", "token")}


def costs_of_mode(model: VideoModel, recording: Recording, prompt: Prompt, axes: str) -> NDArray[np.float64]:
    """See `pair_costs`."""
    answer, reference = _answer(model, recording, prompt)
    costs = np.zeros((model.text_config.num_hidden_layers, len(kvtuner.PAIRS)))
    policy = _OneLayer(Quantization(policy=f"kvtuner:axes={axes}:group={_group(model)}"))
    for layer, place in np.ndindex(costs.shape):
        policy.layer, policy.pair = layer, kvtuner.PAIRS[place]
        state = recording.sealed(prompt, policy.settings, ANSWER_TOKENS, policy)
        costs[layer, place] = fidelity(reference, forced(model, state, answer))[0]
    return costs


class _OneSide(focus.Focus):
    """The keys or the values of one layer at the lowest width, all else at full precision."""

    layer, side = 0, 0

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        widths = [FULL_PRECISION, FULL_PRECISION]
        if layer == self.layer:
            widths[self.side] = focus.WIDTHS[0]
        return self._same_width(relevance.shape[1], *widths)


def side_costs(model: VideoModel, prompt: Prompt) -> Measured:
    """KL to full precision over its answer when one side of one layer alone has the lowest width, [L] for each side.

    As shares of their sum: the KL of a prompt whose answer is a near thing is many times that of another, and the mean
    over prompts would be that of one.
    """
    recording = Recording(model, prompt)
    answer, reference = _answer(model, recording, prompt)
    costs = np.zeros((len(focus.SIDES), model.text_config.num_hidden_layers))
    for side, layer in np.ndindex(costs.shape):
        policy = _OneSide(Quantization(policy="focus"))
        policy.layer, policy.side = layer, side
        state = recording.sealed(prompt, policy.settings, ANSWER_TOKENS, policy)
        costs[side, layer] = fidelity(reference, forced(model, state, answer))[0]
    shares = costs / max(costs.sum(), np.finfo(np.float64).tiny)
    return dict(zip(focus.SIDES, shares, strict=True))


def _group(model: VideoModel) -> int:
    """KVTuner's 32 channels, or fewer where all heads together have fewer."""
    heads, size = engine.kv_shape(model.text_config)
    return min(32, heads * size)


def _answer(model: VideoModel, recording: Recording, prompt: Prompt) -> tuple[torch.Tensor, torch.Tensor]:
    """The full-precision answer, int64 [1, T], and the log-probabilities at its positions."""
    full = Quantization(policy="fp16")
    state = recording.sealed(prompt, full, ANSWER_TOKENS)
    steps = decoding.decode(model, state, Generation(max_new_tokens=ANSWER_TOKENS))
    answer = torch.stack([token.clone() for token in steps], dim=1).to(model.device)
    return answer, forced(model, recording.sealed(prompt, full, ANSWER_TOKENS), answer)


def gradient_norms(model: VideoModel, prompt: Prompt) -> Measured:
    """L2 norm of the gradient of the loss of the full-precision answer, for k_proj and v_proj of each layer, [L] each.

    Raises:
        UsageError: The weights are not kept as numbers.
    """
    request = engine.prepare(model, [prompt], Quantization(policy="fp16"), room=ANSWER_TOKENS)
    steps = decoding.decode(model, engine.prefill(model, request), Generation(max_new_tokens=ANSWER_TOKENS))
    answer = torch.stack([token.clone() for token in steps], dim=1).to(model.device)
    attention = [layer.self_attn for layer in model.decoder.layers]
    weights = [getattr(part, name).weight for name in ("k_proj", "v_proj") for part in attention]
    if not all(weight.is_floating_point() for weight in weights):
        raise UsageError("gradients of the weights are needed", "leave `--weights 4bit` away")
    with torch.inference_mode(False), torch.enable_grad():
        gradients = torch.autograd.grad(_loss(model, prompt, answer.clone()), weights)
    norms = np.array([float(torch.linalg.vector_norm(gradient.double())) for gradient in gradients])
    return dict(zip(kvmix.NAMES, norms.reshape(2, -1), strict=True))


def _loss(model: VideoModel, prompt: Prompt, answer: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of an answer [1, T] behind its prompt."""
    embeds = torch.cat([prompt.embeds.clone()[None], model.embed(answer[:, :-1])], dim=1)
    count = answer.shape[1]
    after = torch.arange(count - 1, device=embeds.device) + prompt.next_position
    positions = prompt.positions.clone()
    positions = torch.cat([positions, after.expand(*positions.shape[:-1], -1)], dim=-1)
    inputs: dict[str, Any] = {}
    if prompt.deepstack is not None:
        mask = torch.nn.functional.pad(prompt.visual_mask.clone(), (0, count - 1))
        inputs = model.deepstack_inputs(mask[None], prompt.deepstack.clone())
    hidden = model.decoder(
        inputs_embeds=embeds, position_ids=positions[..., None, :], use_cache=False, **inputs
    ).last_hidden_state
    return torch.nn.functional.cross_entropy(model.logits(hidden[0, -count:]), answer[0])


def channel_ranges(model: VideoModel, prompt: Prompt) -> Measured:
    """What the channels of every layer take in one prompt, [L, Hkv * D] each.

    Returns:
        `key_low`, `key_high` before the rotary position; `value_low`, `value_high`; the largest absolute value of keys
        and of queries (over the heads that share a KV head) with it, `key_max` and `query_max`.
    """
    batch = engine.Batch.of([prompt], 1)
    found: dict[str, list[torch.Tensor]] = {name: [] for name in RANGES}

    def keep(layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        found["key_max"].append(keys.abs().amax(dim=(0, 2)))
        found["query_max"].append(queries.abs().amax(dim=(0, 2)).unflatten(0, (keys.shape[1], -1)).amax(dim=1))

    cache = WindowCache(model.text_config, batch.visual, ChannelInWindow(1), on_queries=keep)
    added = {} if batch.deepstack is None else model.deepstack_inputs(batch.visual_mask, batch.deepstack)
    with torch.inference_mode(), engine.windowed_attention(model):
        engine.run_decoder(model, batch.embeds, batch.positions, cache, **added)
        rotary = Rotary(model.decoder, batch.positions)
        for layer in cache.layers:
            keys, values = layer.run
            for name, x in (("key", rotary.undo(keys)), ("value", values)):
                found[f"{name}_low"].append(x.amin(dim=(0, 2)))
                found[f"{name}_high"].append(x.amax(dim=(0, 2)))
    return {name: torch.stack([x.flatten() for x in rows]).double().cpu().numpy() for name, rows in found.items()}


def sensitivity(model: VideoModel, prompt: Prompt) -> Measured:
    """s_i of every layer (eq 9), [L]."""
    request = engine.prepare(model, [prompt], Quantization(policy=DEFAULT), room=1)
    return {"sensitivity": np.array(engine.prefill(model, request).sensitivity, dtype=np.float64)}


# Policy to what is measured for it.
MEASUREMENTS: dict[str, Measurement] = {
    DEFAULT: sensitivity,
    "focus": side_costs,
    "kvtuner": pair_costs,
    "kvmix": gradient_norms,
    "skvq": channel_ranges,
    "smoothquant": channel_ranges,
}
