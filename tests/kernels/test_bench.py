"""What the benchmark of the kernels hands to FlashInfer, and how many rows it promises; figures need a GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from wq_kernels import bench
from wq_kernels.launch import Card


class PagedDecode:
    """Attention over pages [pages, 2, tokens, heads, channels] by FlashInfer's rules, in float64."""

    def __init__(self, workspace: torch.Tensor, layout: str, use_tensor_cores: bool) -> None:
        assert layout == "NHD" and workspace.dtype == torch.uint8

    def plan(self, *arguments: Any, q_data_type: torch.dtype) -> None:
        self.first, self.order, self.last, self.heads, self.kv_heads, self.channels, self.page = arguments
        assert self.first.dtype == self.order.dtype == self.last.dtype == torch.int32

    def run(self, query: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
        outputs = []
        for row, one in enumerate(query):
            own = pages[self.order[self.first[row] : self.first[row + 1]].long()].double()
            tokens = (len(own) - 1) * self.page + int(self.last[row])
            key, value = (own[:, side].flatten(0, 1)[:tokens] for side in (0, 1))
            key, value = (x.repeat_interleave(self.heads // self.kv_heads, dim=1) for x in (key, value))
            weights = torch.einsum("hc,thc->ht", one.double(), key) * self.channels**-0.5
            outputs.append(torch.einsum("ht,thc->hc", weights.softmax(dim=-1), value))
        return torch.stack(outputs)


def test_flashinfer_gets_the_keys_and_values_that_sdpa_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=PagedDecode))
    query = torch.randn(3, bench.QUERY_HEADS, 1, bench.CHANNELS)
    runs = [torch.randn(2, 3, bench.KV_HEADS, 5 * bench.PAGE, bench.CHANNELS) for _ in range(2)]
    expected = [scaled_dot_product_attention(query, *run, enable_gqa=True)[:, :, 0] for run in runs]
    calls = bench.paged_calls(query, [bench.Cache([], *run) for run in runs])
    assert len(calls) == 2
    for call, output in zip(calls, expected, strict=True):
        torch.testing.assert_close(call(), output.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("other_tiles", [False, True])
def test_every_promised_row_is_measured(other_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an hour's time, and nothing that a machine without a GPU could time."""
    seen: list[bench.Row] = []
    monkeypatch.setattr(bench, "attempt", lambda measurement, row, *more: row)
    monkeypatch.setattr(bench, "card", lambda device: Card(multiprocessors=132, shared_bytes=2**17))
    measured = (bench.sweep if other_tiles else bench.compare)(1.0, float("inf"), seen.append)
    assert measured == seen
    assert len(seen) == bench.count(other_tiles)
    assert not (bench.sweep if other_tiles else bench.compare)(1.0, 0.0, seen.append)
