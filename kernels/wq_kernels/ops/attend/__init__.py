"""Attention of new queries over packed segments and a raw run, under one softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wq_kernels.dispatch import choose_backend
from wq_kernels.layout import Segment
from wq_kernels.ops.attend import naive


def attend(
    query: Tensor,
    segments: Sequence[Segment],
    raw_key: Tensor,
    raw_value: Tensor,
    raw_length: int | Tensor,
    *,
    scaling: float,
    raw_mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention over everything a cache holds, without ever holding it dequantized.

    Every query row sees every token of every segment. The last Q tokens of the raw run are the rows' own: row i sees
    raw token j when j <= raw_length - Q + i. A row that sees nothing gives 0.

    Args:
        query: [B, Hq, Q, D], float64, float32, float16 or bfloat16, unit stride along D; Hq = G * Hkv, the heads of
            one KV head next to each other.
        segments: Packed or raw segments of [B, Hkv, ., D]; any number, any widths.
        raw_key: [B, Hkv, capacity, D] in the dtype of query, unit stride along D, `raw_length` tokens filled.
        raw_value: As `raw_key`.
        raw_length: Tokens of the raw run in use, 0 to capacity. An int32 tensor of one element is read by the GPU
            alone, so that a CUDA graph can be replayed at every length.
        scaling: Factor on the scores before the softmax, mostly D ** -0.5.
        raw_mask: bool [B, capacity], False for padding that no row may see; None for no padding.

    Returns:
        [B, Hq, Q, D] in the dtype of query; sums are kept in float32 (float64 for float64).

    Raises:
        ValueError: Shapes or dtypes do not fit together.

    Source: flash decoding (split over the tokens, merge by log-sum-exp), ours over mixed widths.
    """
    _check(query, segments, raw_key, raw_value, raw_length, raw_mask)
    if query.numel() == 0:
        return torch.empty_like(query)
    if choose_backend(query.device, query.dtype).name == "torch":
        return naive.attend(query, segments, raw_key, raw_value, int(raw_length), scaling=scaling, raw_mask=raw_mask)
    from wq_kernels.ops.attend import kernel

    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        return kernel.attend(query, segments, raw_key, raw_value, raw_length, scaling=scaling, raw_mask=raw_mask)


def _check(
    query: Tensor, segments: Sequence[Segment], key: Tensor, value: Tensor, length: int | Tensor, mask: Tensor | None
) -> None:
    batch, query_heads, _, channels = query.shape
    _, heads, capacity, _ = key.shape
    if key.shape != (batch, heads, capacity, channels) or value.shape != key.shape or query_heads % max(heads, 1):
        shapes = f"query {list(query.shape)}, raw_key {list(key.shape)}, raw_value {list(value.shape)}"
        raise ValueError(f"query, raw_key and raw_value must be [B, G * Hkv, Q, D] and twice [B, Hkv, N, D]: {shapes}")
    if key.dtype != query.dtype or value.dtype != query.dtype:
        raise ValueError(f"raw_key and raw_value must be {query.dtype} as query, not {key.dtype} and {value.dtype}")
    if any(tensor.stride(3) != 1 for tensor in (query, key, value) if channels > 1):
        raise ValueError("query, raw_key and raw_value must have unit stride along D")
    if isinstance(length, int) and not 0 <= length <= capacity:
        raise ValueError(f"raw_length must lie between 0 and the capacity {capacity}, not be {length}")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (batch, capacity) or mask.stride(1) != 1):
        found = f"{mask.dtype} {list(mask.shape)} with strides {mask.stride()}"
        raise ValueError(f"raw_mask must be bool [{batch}, {capacity}] with unit stride along tokens, not {found}")
    for segment in segments:
        shape = (*segment.key.data.shape[:2], segment.key.channels)
        if shape != (batch, heads, channels):
            raise ValueError(
                f"a segment must be [{batch}, {heads}, ., {channels}], not [{shape[0]}, {shape[1]}, ., {shape[2]}]"
            )
