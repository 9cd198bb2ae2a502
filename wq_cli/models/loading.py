"""From a profile, a folder or a hub name to a loaded model: where it runs, in which dtype, and what can go wrong."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from wq_cli import device as devices
from wq_cli.errors import DeviceError, ModelError, first_line
from wq_cli.models import check_parts, family_of, hub, sizing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wq_cli.config import Dtype, Weights
    from wq_cli.models.base import VideoModel

BFLOAT16_CAPABILITY = (8, 0)
# `--device` for a model whose layers are spread over all GPUs.
MULTI = "multi"
REDO = "the folder must hold what `save_pretrained` writes, processor included; `wq pull` gets a model of the hub again"


def choose_device(asked: str) -> torch.device:
    """`auto` is the GPU when there is one; `multi` begins on the first.

    Raises:
        DeviceError: No such device here.
    """
    if asked == MULTI:
        _need("`--device multi`", "multi", "accelerate")
        if not torch.cuda.is_available():
            raise DeviceError("`--device multi` spreads a model over GPUs, and there is none", "take `--device cpu`")
        return torch.device("cuda:0")
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        # A tensor knows which GPU `cuda` is; not everything that takes a device does.
        return torch.empty(0, device=asked).device
    except (RuntimeError, AssertionError) as error:
        here = "cpu" if not torch.cuda.is_available() else f"cpu, cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        raise DeviceError(f"device `{asked}` cannot be used", f"devices here: {here}") from error


def _need(what: str, extra: str, *packages: str) -> None:
    """Refuse what needs an optional extra that is not installed.

    Raises:
        DeviceError: Names the packages and how to get them.
    """
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        names = " and ".join(f"`{package}`" for package in missing)
        raise DeviceError(f"{what} needs {names}", f"pip install 'wq-video[{extra}]'")


def _import_bitsandbytes() -> None:
    """Import it without the package `kernels`, through which it would fetch code from the hub and run it."""
    held = sys.modules.get("kernels")
    sys.modules["kernels"] = None  # type: ignore[assignment]
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import_module("bitsandbytes")
    finally:
        del sys.modules["kernels"]
        if held is not None:
            sys.modules["kernels"] = held


def choose_dtype(asked: Dtype, device: torch.device, stored: torch.dtype | None) -> torch.dtype:
    """The dtype to run in. `auto` is the checkpoint's own on a GPU (no bfloat16 before sm80), float32 on a CPU.

    Args:
        asked: What the user wants.
        device: Where the model will run.
        stored: Dtype of the checkpoint.
    """
    suited = _suited_dtype(asked, device, stored)
    return torch.float16 if suited == torch.bfloat16 and _lacks_bfloat16(device) else suited


def _suited_dtype(asked: Dtype, device: torch.device, stored: torch.dtype | None) -> torch.dtype:
    if asked != "auto":
        chosen: torch.dtype = getattr(torch, asked)
        return chosen
    if device.type != "cuda":
        return torch.float32
    return stored if stored in (torch.float16, torch.bfloat16) else torch.bfloat16


def _lacks_bfloat16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < BFLOAT16_CAPABILITY


def dtype_notice(asked: Dtype, device: torch.device, stored: torch.dtype | None) -> str | None:
    """A warning where a card lacks the number type that a model is meant for."""
    if _suited_dtype(asked, device, stored) != torch.bfloat16 or not _lacks_bfloat16(device):
        return None
    return (
        f"`{device}` has no bfloat16: float16 is used, whose numbers end at 65,504; where the answer makes no sense, "
        "take `--dtype float32`"
    )


class _Unheard:
    """A download that nobody watches."""

    def stage(self, name: str, total: int | None = None) -> None: ...

    def advance(self, steps: int = 1) -> None: ...


@dataclass(frozen=True)
class Checkpoint:
    """A model that is on this computer, its weights not read yet.

    Attributes:
        name: What the user calls it: a folder or a hub repository.
        folder: Where it is.
        config: Its transformers configuration.
        processor: Its processor.
    """

    name: str
    folder: Path
    config: Any
    processor: Any

    @cached_property
    def outline(self) -> VideoModel:
        """Its shapes, see `sizing.outline`."""
        return sizing.outline(self.config, self.processor)


def hush() -> None:
    """Keep transformers' advice and bars off the terminal; what goes wrong is said in our words."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def open_checkpoint(
    source: str, revision: str | None = None, *, offline: bool = False, progress: hub.Progress | None = None
) -> Checkpoint:
    """Find a model, download it if need be, and read its config and processor.

    Args:
        source: A folder or a hub repository. One that was pulled is taken as it is, without a look at the network.
        revision: Of a hub repository.
        offline: Never download.
        progress: Told of a download.

    Raises:
        ModelError: Not found, not readable, or of a family that is not supported.
    """
    import transformers

    hush()
    if hub.is_repository(source):
        folder = hub.local_folder(source, revision, offline, progress or _Unheard())
    else:
        folder = Path(source).expanduser()
        if not (folder / "config.json").is_file():
            raise ModelError(f"`{source}` is not a model folder", "a model folder holds a `config.json`")
    try:
        described, _ = transformers.PreTrainedConfig.get_config_dict(folder)
        family_of(str(described.get("model_type")))  # before transformers meets a type that it does not know
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        check_parts(config)
        processor = transformers.AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise _cannot_be_loaded(source, error) from error
    if not processor.chat_template:
        raise ModelError(f"`{source}` has no chat template", "its folder needs the model's `chat_template.jinja`")
    return Checkpoint(source, folder, config, processor)


def load_weights(checkpoint: Checkpoint, asked_device: str, asked_dtype: Dtype, weights: Weights) -> VideoModel:
    """Read a checkpoint's weights to where the model will run.

    Args:
        checkpoint: From `open_checkpoint`.
        asked_device: See `choose_device`.
        asked_dtype: See `choose_dtype`.
        weights: `4bit` keeps the decoder's linear layers as NF4 (QLoRA, arXiv 2305.14314) through bitsandbytes.

    Raises:
        ModelError: They cannot be read.
        DeviceError: They do not fit, or a package is missing.
    """
    import transformers

    device = choose_device(asked_device)
    dtype = choose_dtype(asked_dtype, device, checkpoint.config.dtype)
    placement: dict[str, Any] = {"device_map": "auto"} if asked_device == MULTI else {}
    if weights == "4bit":
        _need("`--weights 4bit`", "4bit", "bitsandbytes", "accelerate")
        _import_bitsandbytes()
        placement = placement or {"device_map": {"": device}}
        placement["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
            llm_int8_skip_modules=sizing.other_linears(checkpoint.outline),
        )
    module, adapter, model_class = family_of(checkpoint.config.model_type)
    try:
        with devices.memory_errors(device, _how_to_fit(asked_device, dtype, weights)):
            model, told = getattr(transformers, model_class).from_pretrained(
                checkpoint.folder,
                dtype=dtype,
                attn_implementation="sdpa",
                use_safetensors=True,
                output_loading_info=True,
                **placement,
            )
            if not placement:
                model = model.to(device)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise _cannot_be_loaded(checkpoint.name, error) from error
    _check_whole(checkpoint.name, told["missing_keys"])
    return wrap(module, adapter, model.eval(), checkpoint.processor)


def _check_whole(name: str, missing: Iterable[str]) -> None:
    """Refuse a checkpoint without some of its weights, which transformers fills with random numbers.

    Vision towers are left alone: some checkpoints lack a part of theirs that is never used.

    Raises:
        ModelError: Names the first of them.
    """
    lacking = sorted(key for key in missing if "vision" not in key and "visual" not in key)
    if lacking:
        raise ModelError(f"`{name}` lacks weights: `{lacking[0]}` and {len(lacking) - 1} more", REDO)


def load(source: str, device: torch.device, dtype: Dtype, revision: str | None = None) -> VideoModel:
    """`open_checkpoint` and `load_weights` in one.

    Raises:
        WqError: As these two.
    """
    return load_weights(open_checkpoint(source, revision), str(device), dtype, "full")


def memory_of(asked_device: str) -> tuple[int | None, int | None]:
    """(free, total) bytes of what `--device` names, all GPUs together for `multi`; None where unknown."""
    if asked_device != MULTI:
        return devices.memory(choose_device(asked_device))
    of_each = [devices.memory(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    return sum(free or 0 for free, _ in of_each), sum(total or 0 for _, total in of_each)


def room_notice(checkpoint: Checkpoint, asked_device: str, asked_dtype: Dtype, weights: Weights) -> str | None:
    """A warning where the weights alone take more memory than is free."""
    dtype = choose_dtype(asked_dtype, choose_device(asked_device), checkpoint.config.dtype)
    needed = sizing.weight_bytes(checkpoint.outline, dtype, weights)
    free, _ = memory_of(asked_device)
    if free is None or needed <= free:
        return None
    gibibytes = f"{needed / 2**30:.1f} GiB, `{asked_device}` has {free / 2**30:.1f} GiB free"
    return f"the weights take {gibibytes}; {_how_to_fit(asked_device, dtype, weights)}"


def _how_to_fit(asked_device: str, dtype: torch.dtype, weights: Weights) -> str:
    """What makes the weights of a model smaller or gives them more room."""
    ways = ["a smaller model"]
    if asked_device != MULTI and torch.cuda.device_count() > 1:
        ways.insert(0, "`--device multi`")
    if weights == "full":
        ways.insert(0, "`--weights 4bit`")
    if dtype == torch.float32:
        ways.insert(0, "`--dtype bfloat16`")
    return f"take {', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else f"take {ways[0]}"


def wrap(module: str, adapter: str, model: Any, processor: Any) -> VideoModel:
    """The adapter named by `family_of` over a loaded model."""
    wrapped: VideoModel = getattr(import_module(f"wq_cli.models.{module}"), adapter)(model, processor)
    return wrapped


def _cannot_be_loaded(source: str, error: Exception) -> ModelError:
    return ModelError(f"`{source}` cannot be loaded: {first_line(error)}", REDO)
