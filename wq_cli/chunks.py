"""MLPs and norms of the decoder over some tokens at a time, so that their wide intermediates never are as long as a
prompt. Each token is computed as before; only attention needs all of them together."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Rows of a matrix product that keep a large GPU busy.
TOKENS_AT_A_TIME = 4096


@contextmanager
def token_chunks(decoder: Any) -> Iterator[None]:
    """Inside this context the token-wise modules of a decoder take at most `TOKENS_AT_A_TIME` tokens of a batch."""
    modules = [decoder.norm]
    for layer in decoder.layers:
        modules += [layer.input_layernorm, layer.post_attention_layernorm, layer.mlp]
    before = [module.__dict__.get("forward") for module in modules]
    for module in modules:
        module.forward = _in_chunks(module.forward)
    try:
        yield
    finally:
        for module, forward in zip(modules, before, strict=True):
            del module.forward  # back to that of its class
            if forward is not None:  # or to what others have put there
                module.forward = forward


def _in_chunks(forward: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of [B, L, D] to the same shape, called on pieces of L."""

    def run(x: torch.Tensor) -> torch.Tensor:
        step = max(1, TOKENS_AT_A_TIME // x.shape[0])
        if x.shape[1] <= step:
            return forward(x)
        output = torch.empty_like(x)
        for piece, target in zip(x.split(step, dim=1), output.split(step, dim=1), strict=True):
            target.copy_(forward(piece))
        return output

    return run
