"""Attention over a sealed layer, registered with transformers under the name `wq`.

The prefill goes to SDPA. Once a layer is sealed, queries meet its packed segments and its full-precision run in the
fused op of `wq_kernels`. A custom attention without a mask function of the same name would get no mask, so both are
registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from wq_cli.errors import ModelError
from wq_kernels import attend

if TYPE_CHECKING:
    import torch

    from wq_cli.cache import WindowCacheLayer
    from wq_cli.compiled import StepLayer

ATTENTION = "wq"


def attach_layer(key: torch.Tensor, layer: WindowCacheLayer) -> torch.Tensor:
    """Let a layer's new keys carry the layer itself: the only way from `Cache.update` to the attention function that
    all model classes leave open."""
    key.wq_layer = layer  # type: ignore[attr-defined]
    return key


def windowed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    step_layer: StepLayer | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of new queries, [B, Hq, Q, D], over everything cached and themselves (causal among themselves).

    Returns:
        [B, Q, Hq, D] and no weights. Padding is known to the cache, so `attention_mask` matters in the prefill only.

    Raises:
        ValueError: The mask hides padding that the cache was not told of.
        ModelError: This layer sees fewer tokens than the cache holds.
    """
    if step_layer is not None:  # this is being compiled
        return step_layer.attend(query, scaling, kwargs.get("sliding_window")), None
    layer: WindowCacheLayer | None = getattr(key, "wq_layer", None)
    if layer is None or not layer.sealed:
        if layer is not None and layer.storage.on_queries is not None:
            layer.storage.on_queries(layer.index, query, key)
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        return output, None
    if (
        layer.cursor is None
        and layer.raw_mask is None
        and attention_mask is not None
        and not attention_mask[:, :, -1].all()
    ):
        raise ValueError("rows are padded: `VisualTokens.from_mask` must get `padding`")
    return attend_sealed(layer, query, *layer.run, scaling, kwargs.get("sliding_window")), None


def attend_sealed(
    layer: WindowCacheLayer,
    query: torch.Tensor,
    raw_key: torch.Tensor,
    raw_value: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """Attention of new queries, [B, Hq, Q, D] to [B, Q, Hq, D], over the segments and the run of a sealed layer.

    Args:
        layer: The new tokens are in its run.
        query: In the model's own coordinates and dtype.
        raw_key, raw_value: The layer's run.
        scaling: Factor on the scores; None for D ** -0.5.
        sliding_window: Tokens that the model lets this layer see; None for all.

    Raises:
        ModelError: They are fewer than the cache holds.
    """
    if sliding_window is not None and layer.length > sliding_window:
        raise ModelError(
            f"a layer that sees the last {sliding_window} tokens only cannot run over windows that were reordered",
            "take a model without sliding windows",
        )
    segments, raw_key, raw_value, raw_length, raw_mask = layer.attended(raw_key, raw_value)
    stored = query if layer.transform is None else layer.transform.queries(query)
    output = attend(
        stored.to(raw_key.dtype),  # what is stored may be narrower than what the model computes in
        segments,
        raw_key,
        raw_value,
        raw_length,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        raw_mask=raw_mask,
    )
    if layer.transform is not None:
        output = layer.transform.own_values(output)
    return output.to(query.dtype).transpose(1, 2).contiguous()


AttentionInterface.register(ATTENTION, windowed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
