"""From a profile, a folder or a hub name to a loaded model: where it runs, in which dtype, and what can go wrong."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from wq_cli.errors import DeviceError, ModelError
from wq_cli.models import family_of

if TYPE_CHECKING:
    from wq_cli.config import Dtype
    from wq_cli.models.base import VideoModel

BFLOAT16_CAPABILITY = (8, 0)


def choose_device(asked: str) -> torch.device:
    """`auto` is the GPU when there is one.

    Raises:
        DeviceError: No such device here.
    """
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        here = "cpu" if not torch.cuda.is_available() else f"cpu, cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        raise DeviceError(f"device `{asked}` cannot be used", f"devices here: {here}") from error
    return device


def choose_dtype(asked: Dtype, device: torch.device, stored: torch.dtype | None) -> torch.dtype:
    """The dtype to run in. `auto` is the checkpoint's own on a GPU (no bfloat16 before sm80), float32 on a CPU.

    Args:
        asked: What the user wants.
        device: Where the model will run.
        stored: Dtype of the checkpoint.
    """
    if asked != "auto":
        chosen: torch.dtype = getattr(torch, asked)
    elif device.type != "cuda":
        chosen = torch.float32
    else:
        chosen = stored if stored in (torch.float16, torch.bfloat16) else torch.bfloat16
    no_bfloat16 = device.type == "cuda" and torch.cuda.get_device_capability(device) < BFLOAT16_CAPABILITY
    return torch.float16 if chosen == torch.bfloat16 and no_bfloat16 else chosen


def load(source: str, device: torch.device, dtype: Dtype, revision: str | None = None) -> VideoModel:
    """Load a model and its processor through `from_pretrained`.

    Args:
        source: A folder or a hub repository.
        device: Where to put it.
        dtype: See `choose_dtype`.
        revision: Of a hub repository.

    Raises:
        ModelError: Not found, not readable, or of a family that is not supported.
        DeviceError: It does not fit.
    """
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # Each of its retries would be a warning; what went wrong is said once, below.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    folder = Path(source).expanduser()
    is_path = folder.exists() or source.startswith((".", "~", os.sep)) or source.count("/") != 1
    if is_path and not (folder / "config.json").is_file():
        raise ModelError(f"`{source}` is not a model folder", "a model folder holds a `config.json`")
    source = str(folder) if is_path else source
    try:
        config = transformers.AutoConfig.from_pretrained(source, revision=revision)
        module, adapter, model_class = family_of(config.model_type)
        processor = transformers.AutoProcessor.from_pretrained(source, revision=revision)
        model = getattr(transformers, model_class).from_pretrained(
            source,
            revision=revision,
            dtype=choose_dtype(dtype, device, config.dtype),
            attn_implementation="sdpa",
            use_safetensors=True,
        )
        model = model.to(device).eval()
    except torch.OutOfMemoryError as error:
        raise DeviceError(f"`{source}` does not fit on `{device}`", "take a smaller model or `--device cpu`") from error
    except (OSError, ValueError) as error:
        raise _load_error(source, is_path, error) from error
    if not processor.chat_template:
        raise ModelError(f"`{source}` has no chat template", "its folder needs the model's `chat_template.jinja`")
    return wrap(module, adapter, model, processor)


def wrap(module: str, adapter: str, model: Any, processor: Any) -> VideoModel:
    """The adapter named by `family_of` over a loaded model."""
    wrapped: VideoModel = getattr(import_module(f"wq_cli.models.{module}"), adapter)(model, processor)
    return wrapped


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _load_error(source: str, is_path: bool, error: Exception) -> ModelError:
    """What went wrong, by the first cause that says it."""
    from huggingface_hub import errors

    if is_path:
        hint = "the folder must hold what `save_pretrained` writes, processor included"
        return ModelError(f"`{source}` cannot be loaded: {_first_line(error)}", hint)
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, errors.GatedRepoError):
            hint = f"ask for it at https://huggingface.co/{source}, then `hf auth login`"
            return ModelError(f"`{source}` is given only to those who were granted access", hint)
        if isinstance(cause, errors.RepositoryNotFoundError):
            hint = "check the spelling; a private one needs `hf auth login`"
            return ModelError(f"there is no model `{source}` on the hub", hint)
        if isinstance(cause, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
            hint = "check the network, and whether HF_HUB_OFFLINE is set"
            return ModelError(f"`{source}` is not on this computer and the hub cannot be reached", hint)
        cause = cause.__cause__ or cause.__context__
    return ModelError(f"`{source}` cannot be loaded: {_first_line(error)}", "check the name and the network")
