"""Methods that keep tokens by their place or size: which ones, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from wq_cli import policies
from wq_cli.blocks import TokenQuantizer
from wq_cli.config import Quantization
from wq_cli.errors import UsageError
from wq_cli.placement import Placement, VisualTokens
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.ends import Ends
from wq_cli.policies.skvq import CLIPS, k_means, searched_clip

WINDOW = 32
DECODER = SimpleNamespace(layers=[])


def prompt(before: int, visual: int, after: int, padding: int = 0) -> VisualTokens:
    mask = torch.zeros(1, padding + before + visual + after, dtype=torch.bool)
    mask[:, padding + before : padding + before + visual] = True
    real = torch.arange(mask.shape[1])[None] >= padding
    return VisualTokens.from_mask(mask, WINDOW, real if padding else None)


def begun(spec: str, tokens: VisualTokens) -> Policy:
    policy = policies.create(Quantization(policy=spec))
    policy.begin(tokens, DECODER)
    return policy


def plan(policy: Policy, tokens: VisualTokens, layer: int = 0) -> LayerPlan:
    return policy.plan_layer(layer, np.full((1, tokens.windows), np.nan), None)


def kept(made: LayerPlan) -> list[int]:
    assert made.kept is not None
    return sorted(made.kept[0].tolist())


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300, 999])
def test_kivi_keeps_what_its_ring_holds_after_the_prefill(length: int) -> None:
    """Of L tokens the keys quantize L - L mod 128, the values L - 128: here all tokens are visual."""
    tokens = prompt(0, length, 0)
    made = plan(begun("kivi", tokens), tokens)
    assert (made.key_bits == 2).sum() == (length - length % 128) // WINDOW
    assert (made.value_bits == 2).sum() == max(0, length - 128) // WINDOW
    assert made.kept is None
    assert (np.diff(made.key_bits) >= 0).all() and (np.diff(made.value_bits) >= 0).all()


def test_kivi_counts_the_text_around_the_video() -> None:
    # L = 10 + 320 + 70 = 400: keys are quantized before position 384, values before 272. Window w ends at 41 + 32 w.
    tokens = prompt(10, 320, 70)
    made = plan(begun("kivi:bits=4", tokens), tokens)
    assert made.key_bits.tolist() == [4] * 10
    assert made.value_bits.tolist() == [4] * 8 + [16] * 2


def test_ends_of_a_prompt_by_hand() -> None:
    # 3 text, 100 visual, 10 text: of the first 5 tokens 2 are visual, of the last 50 there are 40.
    ends = Ends.of(prompt(3, 100, 10), sinks=5, recent=50)
    assert (ends.first, ends.last) == (2, 40)
    made = ends.plan(2, 4)
    assert made.key_bits.tolist() == [2, 2, 16] and made.value_bits.tolist() == [4, 4, 16]
    assert kept(made) == [0, 1, *range(60, 100)]


def test_padding_is_no_start_of_a_prompt() -> None:
    assert Ends.of(prompt(3, 100, 10, padding=7), sinks=5, recent=50) == Ends.of(prompt(3, 100, 10), 5, 50)


def test_kept_tokens_leave_their_windows_for_the_run() -> None:
    tokens = prompt(3, 100, 10)
    placed = Placement.of(Ends.of(tokens, 5, 50).plan(2, 2), tokens, reorder=True)
    assert [(k, v, at[0].tolist()) for k, v, at in placed.segments] == [(2, 2, [*range(5, 63)])]
    assert sorted(placed.run[0].tolist()) == [*range(0, 5), *range(63, 113)]


def test_rows_that_keep_different_numbers_of_tokens_are_refused() -> None:
    tokens = VisualTokens.from_mask(torch.ones(2, 64, dtype=torch.bool), WINDOW)
    made = Ends.of(tokens, 0, 0).plan(2, 2, np.array([[1, 2], [3, 3]]))
    with pytest.raises(ValueError, match="different numbers of tokens"):
        Placement.of(made, tokens, reorder=True)


def test_akvq_keeps_the_tokens_with_massive_activations_from_the_pivot_layer_on() -> None:
    tokens = prompt(2, 96, 0)
    policy = begun("akvq-vl:pivots=2:recent=32", tokens)
    stream = torch.randn(1, 98, 8, generator=torch.Generator().manual_seed(0))
    for place in (2 + 5, 2 + 40, 2 + 90, 0):  # the third is recent, the last is text
        stream[0, place, 3] = -1000.0
    plans = []
    for layer in range(3):
        plans.append(plan(policy, tokens, layer))
        policy.observe(layer, stream)
    recent = [*range(64, 96)]
    assert [kept(p) for p in plans] == [recent, recent, [5, 40, *recent]]
    assert plans[2].key_bits.tolist() == [2, 2, 16]


def test_akvq_has_no_more_pivots_than_old_tokens() -> None:
    tokens = prompt(0, 40, 0)
    policy = begun("akvq-vl:recent=36:tsa_layers=0", tokens)
    policy.observe(1, torch.randn(1, 40, 4))
    assert kept(plan(policy, tokens, 2)) == [*range(40)]


def test_skvq_keeps_its_sinks_and_window() -> None:
    tokens = prompt(1, 320, 28)
    made = plan(begun("skvq:value_bits=1.5", tokens), tokens)
    assert made.key_bits.tolist() == [2] * 7 + [16] * 3
    assert kept(made) == [*range(4), *range(220, 320)]


def test_k_means_finds_clusters_that_are_there() -> None:
    random = np.random.default_rng(0)
    centres = np.array([[-3.0, 3.0], [0.0, 1.0], [-1.0, 9.0], [-20.0, 2.0]])
    truth = random.integers(0, 4, 128)
    labels = k_means(centres[truth] + 0.1 * random.standard_normal((128, 2)), 4)
    assert len({(a, b) for a, b in zip(truth, labels, strict=True)}) == 4


@pytest.mark.parametrize("learned", [False, True])
def test_the_clip_of_a_group_is_the_best_of_those_tried(learned: bool) -> None:
    random = torch.Generator().manual_seed(0)
    # Groups with more and more outliers, which want to be clipped more and more.
    x = torch.randn(1, 2, 400, 32, generator=random)
    x[..., 8:] *= 1 + 8 * (torch.rand(x[..., 8:].shape, generator=random) < 0.01)
    x[..., 24:] = x[..., 24:].sign()  # nothing to clip
    groups = torch.arange(64).view(2, 32).div(8, rounding_mode="floor").to(torch.uint8) if learned else None
    quantizer = TokenQuantizer(group=8, groups=groups)
    found = searched_clip(quantizer, x, 4)
    for g in range(8):
        head, channels = divmod(8 * g, 32)
        part = x[:, head : head + 1, :, channels : channels + 8].double()
        errors = []
        for clip in CLIPS:
            low, high = clip * part.amin(-1, True), clip * part.amax(-1, True)
            step = ((high - low) / 3).half().double()
            low = low.half().double()
            codes = ((part - low) / torch.where(step > 0, step, 1.0)).round().clamp(0, 3)
            errors.append(float(((codes * step + low - part) ** 2).sum()))
        assert errors[CLIPS.index(pytest.approx(float(found[g])))] <= min(errors) * 1.001
    assert len(set(found.tolist())) > 1


def test_k_means_of_equal_points() -> None:
    assert set(k_means(np.zeros((8, 2)), 3).tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(
    "spec",
    ["kivi:group=0", "skvq:clip=0", "skvq:recent=-1", "akvq-vl:pivot_layer=0", "akvq-vl:clip=2", "smoothquant:alpha=2"],
)
def test_options_outside_their_range_are_refused(spec: str) -> None:
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        policies.check(spec)


def test_smoothquant_needs_weights_that_are_numbers() -> None:
    packed = SimpleNamespace(weight=torch.zeros(4, dtype=torch.uint8))
    decoder = SimpleNamespace(layers=[SimpleNamespace(self_attn=SimpleNamespace(o_proj=packed))])
    with pytest.raises(UsageError, match="output weights"):
        policies.create(Quantization(policy="smoothquant")).begin(prompt(0, 32, 0), decoder)
