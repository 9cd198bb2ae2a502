"""A transformers `Cache` whose layers are sealed: visual windows reordered by width, quantized and packed.

During the prefill a layer holds its keys and values as they come. Sealing it keeps packed segments plus one
full-precision *run*: text, windows at full precision, tail, and all tokens that follow. Softmax does not depend on the
order of keys that already carry their rotary position, so the run may mix them (methods of WindowQuant, section 3.3).
All contact with transformers' cache classes is in this file.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from wq_cli.attention import ATTENTION, attach_layer
from wq_cli.blocks import TorchBlock, TorchSegment, read, segment
from wq_cli.placement import Placement, VisualTokens
from wq_cli.policies.base import Budget, LayerPlan, Policy
from wq_kernels import Block, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wq_cli.codecs import Coding
    from wq_cli.transforms import Transform

# Tokens of room added when the run is full.
GROWTH_TOKENS = 64


@dataclass
class Storage:
    """What all layers of a cache share.

    Layers hold this and not their cache: references in a circle would keep the memory of a cache that is out of use
    until Python looks for circles.

    Attributes:
        config: The language model's config.
        prompts: Where the visual tokens of the prompts are.
        visual: The same for every row of the batch, which a beam search makes longer.
        codec, room, reorder, dtype, on_queries: See `WindowCache`.
    """

    config: Any
    prompts: VisualTokens
    visual: VisualTokens
    codec: Coding
    room: int
    reorder: bool
    dtype: torch.dtype | None
    on_queries: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None
    _last_placement: Placement | None = field(default=None, init=False)

    def placement(self, plan: LayerPlan, device: torch.device) -> Placement:
        """The placement of a plan on a layer's device; layers that follow each other often have the same."""
        last, visual = self._last_placement, self.visual.to(device)
        if last is None or not last.fits(plan, visual):
            self._last_placement = last = Placement.of(plan, visual, self.reorder)
        return last

    @property
    def uses_our_attention(self) -> bool:
        return bool(self.config._attn_implementation == ATTENTION)


@dataclass(frozen=True)
class Cursor:
    """Where the newest token of a layer's run lies, counted on its device.

    Attributes:
        place: Its place, int64 [1].
        length: Tokens of the run, int32 [1]: one more.
    """

    place: torch.Tensor
    length: torch.Tensor


class WindowCacheLayer(CacheLayerMixin):
    """One layer: open during the prefill, then sealed.

    Attributes:
        index: Of the layer in the model.
        transform: What everything sealed is kept in the coordinates of; None for the model's own.
        segments: Packed windows, every token visible to every later query.
        raw_key, raw_value: The full-precision run with room to grow, [B, Hkv, capacity, D].
        raw_length: Tokens of the run in use.
        raw_mask: False where the run holds padding, [B, capacity]; None without padding.
        cursor: Counts the run on the device while tokens come one by one, else None.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, storage: Storage, index: int) -> None:
        super().__init__()
        self.storage = storage
        self.index = index
        self.reset()

    def reset(self) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.is_initialized = False
        self.plan: LayerPlan | None = None
        self.transform: Transform | None = None
        self.segments: list[Segment | TorchSegment] = []
        self.raw_key: torch.Tensor | None = None
        self.raw_value: torch.Tensor | None = None
        self.raw_mask: torch.Tensor | None = None
        self.raw_length = 0
        self.length = 0
        self.cursor: Cursor | None = None

    @property
    def sealed(self) -> bool:
        return self.plan is not None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.device, self.dtype = key_states.device, key_states.dtype
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new tokens, [B, Hkv, T, D] each.

        Returns:
            What the attention function gets: all keys and values while the layer is open. Once sealed, the new ones
            alone with this layer attached when the model runs our attention, else everything dequantized, in the
            order of the prompt.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.cursor is not None:
            self.put(key_states, value_states)
            return attach_layer(key_states, self), value_states
        self.length += key_states.shape[-2]
        if not self.sealed:
            self.keys = key_states if self.keys is None else torch.cat([self.keys, key_states], dim=-2)
            self.values = value_states if self.values is None else torch.cat([self.values, value_states], dim=-2)
            if self.storage.on_queries is None:
                return self.keys, self.values
            return attach_layer(self.keys.view_as(self.keys), self), self.values
        self._append(*self._transformed(key_states, value_states))
        if self.storage.uses_our_attention:
            return attach_layer(key_states, self), value_states
        return self.dequantized(key_states.dtype)

    @torch.no_grad()
    def seal(self, plan: LayerPlan) -> None:
        """Reorder, quantize, pack and drop the full-precision copy.

        Raises:
            ValueError: The layer is not the one the plan and the visual tokens were made for.
        """
        visual = self.storage.visual
        if self.keys is None or self.values is None or self.sealed:
            raise ValueError("only a layer that was filled and is not sealed yet can be sealed")
        if plan.windows != visual.windows:
            raise ValueError(f"a plan for {plan.windows} windows does not fit {visual.windows} windows")
        if self.length < visual.length:
            raise ValueError(f"the prefill held {self.length} tokens, the visual mask {visual.length}")
        keys, values = (x.to(self.storage.dtype or x.dtype) for x in (self.keys, self.values))
        self.keys = self.values = None
        codec = self.storage.codec.of_layer(self.index, keys, values)
        self.transform = codec.transform
        keys, values = self._transformed(keys, values)
        placement = self.storage.placement(plan, keys.device)
        for key_bits, value_bits, index in placement.segments:
            key, value = codec.keys.encode(keys, index, key_bits), codec.values.encode(values, index, value_bits)
            self.segments.append(segment(key, value))
        self.raw_key = self._gather(keys, placement.run)
        self.raw_value = self._gather(values, placement.run)
        if visual.padding is not None:
            seen = visual.padding.to(keys.device).gather(1, placement.run)
            self.raw_mask = torch.nn.functional.pad(seen, (0, self.storage.room), value=True)
        self.raw_length = placement.run.shape[1]
        self.plan = plan
        # Assisted decoding runs its first candidates along with the prompt.
        self._append(keys[:, :, visual.length :], values[:, :, visual.length :])

    def _transformed(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's keys and values as they are kept."""
        if self.transform is None:
            return keys, values
        return self.transform.keys(keys), self.transform.values(values)

    @property
    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at full precision, [B, Hkv, capacity, D] each: all of them while the layer is open."""
        key, value = (self.raw_key, self.raw_value) if self.sealed else (self.keys, self.values)
        assert key is not None and value is not None
        return key, value

    def _gather(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """The run of one side with room to grow, [B, Hkv, T + room, D]."""
        batch, heads, _, dim = x.shape
        run = x.new_zeros(batch, heads, index.shape[1] + self.storage.room, dim)
        run[:, :, : index.shape[1]] = x.gather(2, index[:, None, :, None].expand(-1, heads, -1, dim))
        return run

    @torch.no_grad()
    def _append(self, key: torch.Tensor, value: torch.Tensor) -> None:
        end = self.raw_length + key.shape[-2]
        missing = end - self.run[0].shape[-2]
        if missing > 0:
            self.grow(max(missing, GROWTH_TOKENS))
        raw_key, raw_value = self.run
        raw_key[:, :, self.raw_length : end] = key
        raw_value[:, :, self.raw_length : end] = value
        self.raw_length = end

    def grow(self, tokens: int) -> None:
        """Make room for more tokens in the run."""
        raw_key, raw_value = self.run
        self.raw_key = torch.nn.functional.pad(raw_key, (0, 0, 0, tokens))
        self.raw_value = torch.nn.functional.pad(raw_value, (0, 0, 0, tokens))
        if self.raw_mask is not None:
            self.raw_mask = torch.nn.functional.pad(self.raw_mask, (0, tokens), value=True)

    @property
    def length_of_run(self) -> int | torch.Tensor:
        """Tokens of the run for the attention: a number, or where the device counts them."""
        return self.raw_length if self.cursor is None else self.cursor.length

    def put(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Store one token, [B, Hkv, 1, D] each, where the cursor stands."""
        assert self.cursor is not None and self.raw_key is not None and self.raw_value is not None
        key, value = self._transformed(key_states, value_states)
        self.raw_key.index_copy_(2, self.cursor.place, key.to(self.raw_key.dtype))
        self.raw_value.index_copy_(2, self.cursor.place, value.to(self.raw_value.dtype))

    def attended(
        self, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[list[Segment], torch.Tensor, torch.Tensor, int | torch.Tensor, torch.Tensor | None]:
        """What attention runs over: (segments, keys and values of the run, their length, their mask).

        What no kernel reads is read here and goes before the run, in memory for this call.

        Args:
            key, value: The run.
        """
        packed = [s for s in self.segments if isinstance(s, Segment)]
        others = [s for s in self.segments if not isinstance(s, Segment)]
        if not others:
            return packed, key, value, self.length_of_run, self.raw_mask
        length = int(self.length_of_run)
        key = torch.cat([*(read(s.key, key.dtype) for s in others), key[:, :, :length]], dim=2)
        value = torch.cat([*(read(s.value, value.dtype) for s in others), value[:, :, :length]], dim=2)
        mask = self.raw_mask
        if mask is not None:
            mask = torch.nn.functional.pad(mask[:, :length], (key.shape[2] - length, 0), value=True)
        return packed, key, value, key.shape[2], mask

    def dequantized(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values in the order of the prompt, [B, Hkv, length, D] each.

        For models that run another attention: right, but it undoes the saving for the time of the call.
        """
        assert self.plan is not None
        raw_key, raw_value = self.run
        placement = self.storage.placement(self.plan, raw_key.device)
        prompt = torch.cat([*(index for _, _, index in placement.segments), placement.run], dim=1)
        new = torch.arange(prompt.shape[1], self.length, device=prompt.device).expand(prompt.shape[0], -1)
        back = torch.cat([prompt, new], dim=1).argsort(dim=1)[:, None, :, None]

        def restore(blocks: list[Block | TorchBlock], run: torch.Tensor) -> torch.Tensor:
            stored = torch.cat([*(read(b, dtype) for b in blocks), run[:, :, : self.raw_length].to(dtype)], dim=2)
            return stored.gather(2, back.expand(-1, stored.shape[1], -1, stored.shape[3]))

        keys = restore([segment.key for segment in self.segments], raw_key)
        values = restore([segment.value for segment in self.segments], raw_value)
        if self.transform is None:
            return keys, values
        return self.transform.own_keys(keys), self.transform.own_values(values)

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor this layer holds."""
        held = (self.keys, self.values, self.raw_key, self.raw_value, self.raw_mask)
        return sum(x.nbytes for x in held if x is not None) + self.segment_nbytes

    @property
    def segment_nbytes(self) -> int:
        """Bytes of the packed windows, and of a transform that is this layer's own."""
        return sum(segment.nbytes for segment in self.segments) + self._transform_nbytes

    @property
    def metadata_nbytes(self) -> int:
        """Bytes of all that is packed but codes: scales, minima, a transform of the layer's own."""
        return sum(s.key.metadata_nbytes + s.value.metadata_nbytes for s in self.segments) + self._transform_nbytes

    @property
    def _transform_nbytes(self) -> int:
        return 0 if self.transform is None else self.transform.nbytes

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest tokens, as transformers counts them: -3 forgets three.

        Raises:
            ValueError: They are not all newer than the prompt.
        """
        count = -tokens_to_remove
        if not 0 <= count <= max(0, self.length - self.storage.visual.length):
            raise ValueError(f"`crop({tokens_to_remove})` reaches into the prompt")
        self.length -= count
        if self.sealed:
            self.raw_length -= count
        elif self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Follow a beam search: every row of the batch may change places."""
        names = ["keys", "values", "raw_key", "raw_value", "raw_mask"]
        for name in names:
            held = getattr(self, name)
            if held is not None:
                setattr(self, name, held.index_select(0, beam_idx.to(held.device)))
        self.segments = [segment(_rows(s.key, beam_idx), _rows(s.value, beam_idx)) for s in self.segments]


def _rows(block: Block | TorchBlock, index: torch.Tensor) -> Block | TorchBlock:
    """Some rows of the batch of a block, in the order given."""
    index = index.to(block.data.device)
    if isinstance(block, TorchBlock):
        return block.rows(index)
    tensors = {name: getattr(block, name) for name in ("data", "scale", "minimum")}
    return replace(block, **{name: x.index_select(0, index) for name, x in tensors.items() if x is not None})


class WindowCache(Cache):
    """Visual windows packed by a plan, everything else at full precision.

    Works inside `model.generate(past_key_values=...)`: with a `planner` every layer is sealed as soon as the next one
    starts. The model may run any attention implementation; with `wq` (see `wq_cli.attention`) nothing is dequantized
    in memory.

    Args:
        config: The language model's config.
        visual: Where the visual tokens of the prompt are.
        codec: How windows are stored.
        planner: Plan of a layer by its index. None leaves sealing to the caller.
        room: Tokens of the run to allocate beyond the prompt; it grows when they are used up.
        reorder: See `wq_cli.placement.storage_order`.
        dtype: Dtype of what is stored; None is the model's.
        on_queries: Called in the prefill with the index of a layer, its queries, [B, Hq, L, D], and its keys,
            [B, Hkv, L, D], rotary position applied, when the model runs our attention.
    """

    layers: list[WindowCacheLayer]

    def __init__(
        self,
        config: Any,
        visual: VisualTokens,
        codec: Coding,
        *,
        planner: Callable[[int], LayerPlan] | None = None,
        room: int = GROWTH_TOKENS,
        reorder: bool = True,
        dtype: torch.dtype | None = None,
        on_queries: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None,
    ) -> None:
        self.planner = planner
        self.storage = Storage(config, visual, visual, codec, room, reorder, dtype, on_queries)
        super().__init__(layers=[WindowCacheLayer(self.storage, index) for index in range(config.num_hidden_layers)])

    @property
    def visual(self) -> VisualTokens:
        """Where the visual tokens of every row of the batch are."""
        return self.storage.visual

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if key_states.shape[0] != self.visual.positions.shape[0]:
            self.storage.visual = self.storage.prompts.repeated(key_states.shape[0])
        # The layer before has done its attention, so its full-precision copy can go.
        before = self.layers[layer_idx - 1]
        if self.planner is not None and before.is_initialized and not before.sealed:
            before.seal(self.planner(self.layers.index(before)))
        return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)

    def seal(self, layer_idx: int, plan: LayerPlan) -> None:
        """Seal one layer whose attention has run."""
        self.layers[layer_idx].seal(plan)

    @contextmanager
    def stepping(self, room: int) -> Iterator[None]:
        """Inside, tokens come one by one through our attention, and the device counts them.

        Before each token `advance` moves the places on, which a CUDA graph can hold; `count_step` tells the host.

        Args:
            room: Tokens that will come.
        """
        self._counters = []
        for device in {layer.device for layer in self.layers}:
            here = [layer for layer in self.layers if layer.device == device]
            lengths = torch.tensor([layer.raw_length for layer in here], dtype=torch.int32, device=device)
            # A place every 16 bytes: compiled code copies what is not aligned.
            places = (lengths.long() - 1)[:, None].repeat(1, 2)
            self._counters += [lengths, places]
            for i, layer in enumerate(here):
                missing = layer.raw_length + room - layer.run[0].shape[-2]
                if missing > 0:
                    layer.grow(missing)
                layer.cursor = Cursor(places[i, :1], lengths[i : i + 1])
        try:
            yield
        finally:
            for layer in self.layers:
                layer.cursor = None

    def advance(self) -> None:
        """Move every layer's place on by one token, on the devices."""
        for counter in self._counters:
            counter += 1

    def count_step(self) -> None:
        """One token has come."""
        for layer in self.layers:
            layer.length += 1
            layer.raw_length += 1

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor in the cache."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def metadata_nbytes(self) -> int:
        return sum(layer.metadata_nbytes for layer in self.layers)

    @property
    def full_nbytes(self) -> int:
        """Bytes of the same tokens, room included, were nothing quantized."""
        total = 0
        for layer in self.layers:
            run, _ = layer.run
            batch, heads, capacity, dim = run.shape
            tokens = capacity + sum(segment.tokens for segment in layer.segments)
            total += 2 * batch * heads * tokens * dim * run.itemsize
        return total

    @property
    def visual_bits(self) -> float:
        """Stored bits per element of the visual tokens: codes, metadata and full-precision windows."""
        bits = elements = 0
        for layer in self.layers:
            run, _ = layer.run
            batch, heads, _, dim = run.shape
            visual_tokens = self.visual.positions.shape[1]
            run_tokens = visual_tokens - sum(segment.tokens for segment in layer.segments)
            bits += 8 * (layer.segment_nbytes + 2 * batch * heads * run_tokens * dim * run.itemsize)
            elements += 2 * batch * heads * visual_tokens * dim
        return bits / elements if elements else 0.0


def budget_for(visual: VisualTokens, policy: Policy, layers: int, full_bits: int, visual_bits: float) -> Budget:
    """The budget object of a policy for an average of `visual_bits` per visual element."""
    tail = visual.tail.shape[1]
    elements = 2 * layers * visual.positions.shape[1]
    return Budget(
        total_bits=visual_bits * elements,
        layers=layers,
        tail_bits=2 * tail * full_bits,
        full_window_bits=2 * visual.window * full_bits,
        window_bits=lambda key, value: policy.window_bits(key, value, full_bits),
        elements=elements,
    )
