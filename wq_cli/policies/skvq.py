"""SKVQ (arXiv 2405.06219): keys and values per token, over groups of channels that are alike, with a clipped range.

Channels of all KV heads are clustered by the lowest and highest value they take (k-means); each cluster is a group. A
group's range is clip * [min, max], its scale and minimum are float8 e4m3. Keys are stored before their rotary position
and get it when they are read, as in the settings that the released code names. The first 5 tokens of the prompt and the
last 128 stay at full precision.

Our reading: clusters come from the request's own prompt, or with `calibrated` from a few clips, instead of a text
corpus, and codes are computed from the pair as it is stored. One factor clips all groups, as in the released code; the
paper searches one for each group, which `clip_search` does on the prompt. Text and what follows the prompt stay at full
precision as for every policy here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wq_cli.codecs import Coding, LayerCodec, PerToken
from wq_cli.errors import UsageError, WqError
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.ends import Ends
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from wq_cli.blocks import TokenQuantizer
    from wq_cli.offline import Numbers
    from wq_cli.placement import VisualTokens
    from wq_cli.rotary import Rotary

LEVELS = {"4": 16, "2": 4, "1.5": 3}
WIDTHS = {"4": 4, "2": 2, "1.5": 2}  # in plans, whose widths are whole
ENDS = ("key_low", "key_high", "value_low", "value_high")
REMEASURE = "again: `wq calibrate --policy skvq`"
RESTARTS, STEPS = 10, 100
CLIPS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.8, 0.75, 0.7)
SEARCH_TOKENS = 1024


@dataclass(frozen=True)
class SkvqOptions(Options):
    """Options of `skvq`.

    Attributes:
        key_bits, value_bits: 1.5 is three levels, five codes in a byte.
        group: Channels of a group, on average; groups number Hkv * D / group.
        reorder: Whether channels are clustered; else groups are neighbours.
        calibrated: Whether by what `wq calibrate --policy skvq` measured; else by the prompt at hand.
        clip: Factor on the range; the released code has 0.92 and 0.96.
        clip_search: Whether each group has a factor of its own instead, the one with the smallest squared error.
        clip_about: What clipping shrinks a range towards: `zero` is the released code, `middle` never shifts it.
        fp8: Whether scales and minima are float8 e4m3 and not float16.
        pre_rope: Whether keys are stored before their rotary position and rotated when they are read.
        sinks, recent: Tokens at the start and at the end of the prompt that stay at full precision.
        key_centering: Whether the mean of every 32 keys is taken away first (not in the paper).
    """

    key_bits: Literal["4", "2", "1.5"] = "2"
    value_bits: Literal["4", "2", "1.5"] = "2"
    group: int = 128
    reorder: bool = True
    calibrated: bool = False
    clip: float = 0.92
    clip_search: bool = False
    clip_about: Literal["zero", "middle"] = "zero"
    fp8: bool = True
    pre_rope: bool = True
    sinks: int = 5
    recent: int = 128
    key_centering: bool = False

    def __post_init__(self) -> None:
        if self.group < 1 or min(self.sinks, self.recent) < 0:
            raise UsageError("`group` of `skvq` must be positive, `sinks` and `recent` not negative")
        if not 0 < self.clip <= 1:
            raise UsageError("`clip` of `skvq` must lie in 0 to 1")
        if self.calibrated and not self.pre_rope:
            raise UsageError("`skvq` is calibrated for keys before their rotary position", "leave `pre_rope=off` away")


class Skvq(Policy):
    """See the module."""

    options_type = SkvqOptions
    options: SkvqOptions
    _measured: NDArray[np.float64] | None = None

    @property
    def needs_numbers(self) -> bool:
        return self.options.calibrated

    def told(self, numbers: Numbers) -> None:
        """
        Raises:
            WqError: The numbers are not those of `wq calibrate --policy skvq`.
        """
        ends = [np.array(numbers.get(name, []), dtype=np.float64) for name in ENDS]
        if any(side.ndim != 2 or side.shape != ends[0].shape for side in ends):
            raise WqError("what was measured for `skvq` is incomplete", REMEASURE)
        self._measured = np.stack(ends, axis=-1).reshape(*ends[0].shape, 2, 2)

    def begin(self, visual: VisualTokens, decoder: Any) -> None:
        self._visual, self._decoder = visual, decoder
        self._ends = Ends.of(visual, self.options.sinks, self.options.recent)
        self._positions: torch.Tensor | None = None

    def place(self, positions: torch.Tensor) -> None:
        self._positions = positions

    def coding(self) -> SkvqCoding:
        if not self.options.pre_rope:
            return SkvqCoding(self.options, self._visual)
        from wq_cli.rotary import Rotary

        if self._positions is None:
            raise ValueError("`skvq` needs the rotary positions of the prompt")
        return SkvqCoding(self.options, self._visual, Rotary(self._decoder, self._positions), self._measured)

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        return self._ends.plan(WIDTHS[self.options.key_bits], WIDTHS[self.options.value_bits])


@dataclass(frozen=True)
class SkvqCoding(Coding):
    """Groups of channels that are alike in the prompt at hand.

    Attributes:
        options: All of them.
        visual: Tokens that are looked at.
        rotary: What keys are stored before; None stores them as they are.
        measured: Ends of the channels of every layer, [L, Hkv * D, 2 sides, 2 ends]; None looks at the prompt.
    """

    options: SkvqOptions
    visual: VisualTokens
    rotary: Rotary | None = None
    measured: NDArray[np.float64] | None = None

    def of_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerCodec:
        options = self.options
        key_ends, value_ends = (None, None) if self.measured is None else self.measured[layer].transpose(1, 0, 2)
        of_values = self._codec(values, options.value_bits, False, value_ends)
        if self.rotary is None:
            return LayerCodec(self._codec(keys, options.key_bits, options.key_centering, None), of_values)
        from wq_cli.rotary import BeforeRotary

        of_keys = self._codec(self.rotary.undo(keys), options.key_bits, options.key_centering, key_ends)
        return LayerCodec(BeforeRotary(of_keys, self.rotary), of_values)

    def _codec(self, x: torch.Tensor, bits: str, centred: bool, ends: NDArray[np.float64] | None) -> PerToken:
        import torch

        from wq_cli.blocks import TokenQuantizer, gather

        options = self.options
        visual = gather(x, self.visual.to(x.device).positions)
        width = x.shape[1] * x.shape[3]
        count = width // options.group
        if not options.reorder and width % options.group:
            raise UsageError(f"{width} channels are no whole number of groups of {options.group}", "change `group`")
        if ends is not None and len(ends) != width:
            raise WqError(f"`skvq` was told of {len(ends)} channels, the model has {width}", REMEASURE)
        quantizer = TokenQuantizer(
            group=width if options.reorder else options.group,
            groups=alike(visual, count, ends) if options.reorder and count > 1 else None,
            clip=options.clip,
            clip_about=options.clip_about,
            dtype=torch.float8_e4m3fn if options.fp8 else torch.float16,
            centred=centred,
        )
        if options.clip_search:
            quantizer = replace(quantizer, clip=searched_clip(quantizer, visual, LEVELS[bits]))
        return PerToken(1, quantizer, LEVELS[bits])


def alike(x: torch.Tensor, count: int, ends: NDArray[np.float64] | None = None) -> torch.Tensor:
    """Group of each channel by the ends of its range, uint8 [Hkv, D].

    Args:
        x: Keys or values, [B, Hkv, T, D].
        count: Groups.
        ends: Lowest and highest value of each channel, [Hkv * D, 2]; None takes those of x.

    Raises:
        UsageError: More groups than a byte can tell apart.
    """
    import torch

    if count > 256:
        raise UsageError(f"`skvq` would have {count} groups of channels, 256 can be told apart", "raise `group`")
    if ends is None:
        found = torch.stack([x.amin(dim=(0, 2)), x.amax(dim=(0, 2))], dim=-1)
        ends = found.flatten(0, 1).double().cpu().numpy()
    labels = torch.from_numpy(k_means(ends, count))
    return labels.to(torch.uint8).view(x.shape[1], x.shape[3]).to(x.device)


def searched_clip(quantizer: TokenQuantizer, x: torch.Tensor, levels: int) -> torch.Tensor:
    """For each group the factor that leaves the smallest squared error, float32 [G].

    Args:
        quantizer: Its own factor is not looked at.
        x: What is to be stored, [B, Hkv, T, D]; some of the tokens, evenly spread, are tried.
        levels: Of a code.
    """
    import torch

    tried = x[:, :, :: max(1, x.shape[2] // SEARCH_TOKENS)].float()
    errors = []
    for clip in CLIPS:
        error = (replace(quantizer, clip=clip).pack(tried, levels).read(torch.float32) - tried) ** 2
        of_channels = error.sum(dim=(0, 2)).flatten()
        if quantizer.groups is None:
            errors.append(of_channels.unflatten(0, (-1, quantizer.group)).sum(dim=1))
        else:
            index = quantizer.groups.flatten().long()
            errors.append(of_channels.new_zeros(int(index.max()) + 1).index_add(0, index, of_channels))
    return torch.tensor(CLIPS, device=x.device)[torch.stack(errors).argmin(dim=0)]


def k_means(points: NDArray[np.float64], count: int, seed: int = 0) -> NDArray[np.int64]:
    """Lloyd's algorithm from k-means++ starts, the best of 10.

    Args:
        points: [n, d].
        count: Clusters, at most n.
        seed: For the starts.

    Returns:
        Cluster of each point, [n].
    """
    random = np.random.default_rng(seed)
    best, labels = np.inf, np.zeros(len(points), dtype=np.int64)
    for _ in range(RESTARTS):
        centres = points[[random.integers(len(points))]]
        while len(centres) < count:
            distance = _distances(points, centres).min(axis=1)
            weights = distance / distance.sum() if distance.any() else None
            centres = np.concatenate([centres, points[[random.choice(len(points), p=weights)]]])
        for _ in range(STEPS):
            nearest = _distances(points, centres).argmin(axis=1)
            means = [points[nearest == k].mean(axis=0) if (nearest == k).any() else centres[k] for k in range(count)]
            if np.array_equal(means, centres):
                break
            centres = np.stack(means)
        distance = _distances(points, centres)
        if distance.min(axis=1).sum() < best:
            best, labels = distance.min(axis=1).sum(), distance.argmin(axis=1)
    return labels


def _distances(points: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances, [n, k]."""
    squares: NDArray[np.float64] = ((points[:, None] - centres) ** 2).sum(axis=-1)
    return squares
