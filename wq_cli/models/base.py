"""What every VLM family gives the engine: visual tokens, prompts as embeddings, the decoder and its head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from wq_cli.errors import ModelError, WqError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from wq_cli.profile import Profile

# Frames per call of the vision tower where memory does not decide.
FRAMES_PER_BATCH = 8


@dataclass(frozen=True)
class VisualFeatures:
    """A clip as the language model sees it.

    Attributes:
        embeds: Projected and pooled visual tokens in sequence order, [M, D].
        frames: Sampled frame of each token, int64 [M]; -1 for a token that belongs to none.
        pts_seconds: Time of each sampled frame, [F].
        frames_per_token: Frames that a token shows, from its own on; the last token may show fewer.
        grid: Patches of the vision tower along time, height and width, where positions have three components.
        deepstack: What is added to the visual tokens after each of the first layers (DeepStack, arXiv 2406.04334),
            [layers, M, D]; None for nothing.
    """

    embeds: torch.Tensor
    frames: NDArray[np.int64]
    pts_seconds: NDArray[np.float64]
    frames_per_token: int = 1
    grid: tuple[int, int, int] | None = None
    deepstack: torch.Tensor | None = None


@dataclass(frozen=True)
class Prompt:
    """One video and one question, ready for the decoder.

    Attributes:
        embeds: [L, D].
        visual_mask: True for visual tokens, bool [L].
        question: Embeddings of the text that windows are scored against, [N, D].
        positions: Rotary positions, int64 [L], or [3, L] for time, height and width.
        deepstack: See `VisualFeatures`.
    """

    embeds: torch.Tensor
    visual_mask: torch.Tensor
    question: torch.Tensor
    positions: torch.Tensor
    deepstack: torch.Tensor | None = None

    @property
    def visual_end(self) -> int:
        """Index after the last visual token: what comes later may be asked through the packed cache."""
        return int(self.visual_mask.nonzero().max()) + 1

    @property
    def next_position(self) -> int:
        """Rotary position of the first answer token."""
        return int(self.positions[..., -1].max()) + 1


class VideoModel(ABC):
    """A family's adapter over its transformers class.

    Attributes:
        model_type: The `model_type` of its config, the key of the registry.
        content_type: What the chat template is given: one `video`, or an `image` for each frame.
        words_between: Tokens of the text that the processor writes between two frames or groups of them, about.
        model: The transformers model, in eval mode.
        processor: Its processor.
        profile: Whose model it is; None where it was named itself.
        lock: Held by the thread that runs the model.
    """

    model_type: ClassVar[str]
    content_type: ClassVar[Literal["video", "image"]] = "video"
    words_between: ClassVar[int] = 0

    def __init__(self, model: Any, processor: Any) -> None:
        self.model = model
        self.processor = processor
        self.profile: Profile | None = None
        self.lock = RLock()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def text_config(self) -> Any:
        return self.model.config.get_text_config()

    @property
    @abstractmethod
    def decoder(self) -> Any:
        """The language model without its head; has `.layers`."""

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [...] to embeddings [..., D]."""
        embeds: torch.Tensor = self.model.get_input_embeddings()(ids)
        return embeds

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Decoder output [..., D] to float32 logits [..., vocabulary]."""
        logits: torch.Tensor = self.model.get_output_embeddings()(hidden).float()
        return logits

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        eos = self.model.generation_config.eos_token_id
        return frozenset([eos] if isinstance(eos, int) else eos or [])

    def text_of(self, ids: list[int]) -> str:
        """Answer tokens to text."""
        text: str = self.processor.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    @abstractmethod
    def encode(
        self,
        frames: NDArray[np.uint8],
        pts_seconds: NDArray[np.float64],
        on_frames: Callable[[int], None] = lambda count: None,
    ) -> VisualFeatures:
        """Frames to visual tokens, through the family's own video path.

        Args:
            frames: RGB, [F, H, W, 3].
            pts_seconds: Time of each frame, [F].
            on_frames: Called with the number of frames just encoded.
        """

    def frame_of_tokens(self, frames: NDArray[np.uint8], pts_seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        """`VisualFeatures.frames` of a clip, which a model that has no weights yet can tell too."""
        return self.encode(frames, pts_seconds).frames

    @property
    def placeholder(self) -> str:
        """What the chat template writes in the place of a clip, or of each of its frames."""
        return str(self.processor.video_token)

    @abstractmethod
    def visual_texts(self, visual: VisualFeatures) -> list[str]:
        """What the processor writes over each placeholder: visual tokens and the text between them."""

    def prompt_ids(self, question: str, visual: VisualFeatures) -> torch.Tensor:
        """The chat template filled with the clip's visual tokens and the question, int64 [L].

        Raises:
            ModelError: The template leaves the clip out.
        """
        texts = self.visual_texts(visual)
        content = [{"type": self.content_type}] * len(texts) + [{"type": "text", "text": question}]
        conversation = [{"role": "user", "content": content}]
        filled = self.processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        before, *after = filled.split(self.placeholder, maxsplit=len(texts))
        if len(after) < len(texts):
            raise ModelError(
                f"the chat template of this model has no place for a {self.content_type}",
                "take a checkpoint with the `chat_template.jinja` of its family",
            )
        text = before + "".join(shown + rest for shown, rest in zip(texts, after, strict=True))
        # A template may bring the token that starts a text, which the tokenizer would add once more.
        bos = self.processor.tokenizer.bos_token
        has_bos = bos is not None and text.startswith(bos)
        ids = self.processor.tokenizer(text, add_special_tokens=not has_bos)["input_ids"]
        return torch.tensor(ids, dtype=torch.int64)

    @property
    @abstractmethod
    def video_token_id(self) -> int:
        """Placeholder of a visual token."""

    def positions(self, visual_mask: torch.Tensor, visual: VisualFeatures) -> torch.Tensor:
        """Rotary positions of a prompt, int64 [L] or [3, L].

        Args:
            visual_mask: True for visual tokens, bool [L].
            visual: The clip.
        """
        return torch.arange(len(visual_mask), device=visual_mask.device)

    def deepstack_inputs(self, visual_mask: torch.Tensor, deepstack: torch.Tensor) -> dict[str, Any]:
        """Arguments of the decoder's forward that add `deepstack` to the visual tokens.

        Args:
            visual_mask: bool [B, L].
            deepstack: [layers, B * M, D], row after row.
        """
        raise NotImplementedError(f"{self.model_type} has no DeepStack")

    @torch.inference_mode()
    def prompt(self, question: str, visual: VisualFeatures, score_whole_prompt: bool = False) -> Prompt:
        """Question and visual tokens joined.

        Args:
            question: What the user asks.
            visual: The clip.
            score_whole_prompt: Score windows against all text of the prompt, the template's too.

        Raises:
            WqError: The question holds the placeholder itself.
        """
        ids = self.prompt_ids(question, visual).to(self.device)
        mask = ids == self.video_token_id
        if int(mask.sum()) != len(visual.embeds):
            placeholder = self.processor.tokenizer.decode([self.video_token_id])
            raise WqError(f"the question holds `{placeholder}`, which stands for the video", "say it in other words")
        embeds = self.embed(ids)
        embeds[mask] = visual.embeds.to(embeds)
        if score_whole_prompt:
            scored = ids[~mask]
        else:
            scored = torch.tensor(
                self.processor.tokenizer(question, add_special_tokens=False)["input_ids"],
                dtype=torch.int64,
                device=self.device,
            )
        return Prompt(embeds, mask, self.embed(scored), self.positions(mask, visual), visual.deepstack)
