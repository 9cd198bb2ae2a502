"""What training minimises: answers, and the alignment of visual tokens with the words for what they show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wq_cli.scenes.batches import IGNORED, Shape
from wq_cli.scenes.model import IMAGE_SIZE, MEAN, STD, visual_features
from wq_cli.scenes.render import augment, render


@dataclass(frozen=True)
class Result:
    """One forward pass.

    Attributes:
        answer, word, rank: Losses, scalars.
        question_loss: [clips, Q + 1] mean loss of each answer; column 0 is padding.
        right: [clips, Q + 1] whether every token of the answer is the most likely one, which is when greedy decoding
            gives exactly this answer.
        frame_features: [clips, F, hidden] mean of each frame's normalised tokens.
        question_features: [clips, Q, hidden] mean of the normalised embeddings of each question as typed.
    """

    answer: Tensor
    word: Tensor
    rank: Tensor
    question_loss: Tensor
    right: Tensor
    frame_features: Tensor
    question_features: Tensor


class Objective(nn.Module):
    """The model with the three numbers that the alignment losses learn beside it.

    Args:
        content_ids: Tokens of `CONTENT_WORDS`.
        prefix_ids: Tokens before the video.
    """

    content_ids: Tensor
    prefix_ids: Tensor

    def __init__(self, model: Any, content_ids: list[int], prefix_ids: list[int]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("content_ids", torch.tensor(content_ids))
        self.register_buffer("prefix_ids", torch.tensor(prefix_ids))
        self.word_scale = nn.Parameter(torch.tensor(10.0).log())
        self.word_bias = nn.Parameter(torch.tensor(-4.0))
        self.rank_scale = nn.Parameter(torch.tensor(10.0).log())

    def alignment(self) -> list[float]:
        """The three learned numbers, for `set_alignment` of a later stretch."""
        return [self.word_scale.item(), self.word_bias.item(), self.rank_scale.item()]

    @torch.no_grad()
    def set_alignment(self, values: list[float]) -> None:
        """Takes over what `alignment` gave."""
        for parameter, value in zip((self.word_scale, self.word_bias, self.rank_scale), values, strict=True):
            parameter.fill_(value)

    def draw(self, batch: dict[str, Tensor], shape: Shape, vary: bool) -> Tensor:
        """Normalised frames [clips * F, 3, IMAGE_SIZE, IMAGE_SIZE] of a batch, with augmentation if `vary`."""
        with torch.no_grad(), torch.autocast(batch["pose"].device.type, enabled=False):
            frames = render(batch["sprite"], batch["pose"], batch["tint"], batch["background"], IMAGE_SIZE)
            if vary:
                frames = augment(frames, shape.clips)
            return (frames - MEAN) / STD

    def forward(self, batch: dict[str, Tensor], shape: Shape, frames: Tensor) -> Result:
        """Losses and accuracies of a batch (`Packer.batch`) whose frames are drawn."""
        embed = self.model.get_input_embeddings()
        visual = visual_features(self.model, frames)
        text = embed(batch["ids"])
        hidden = self._hidden(visual.view(shape.clips, -1, visual.shape[-1]), text, batch, shape)
        logits = self.model.lm_head(hidden).float()
        losses = F.cross_entropy(logits.flatten(0, 1), batch["label"].flatten(), ignore_index=IGNORED, reduction="none")
        losses = losses.view_as(batch["label"])
        answered = batch["label"] != IGNORED
        columns = batch["segment"].clamp(min=0)
        sums = losses.new_zeros(shape.clips, shape.questions + 1)
        wrong = sums.scatter_add(1, columns, ((logits.argmax(-1) != batch["label"]) & answered).to(sums.dtype))
        lengths = sums.scatter_add(1, columns, answered.to(sums.dtype))
        total = sums.scatter_add(1, columns, losses.detach())
        with torch.autocast(visual.device.type, enabled=False):
            frame_features = F.normalize(visual.float(), dim=-1).mean(1)
            word = self._word_loss(frame_features, embed(self.content_ids), batch["shown"])
            frame_features = frame_features.view(shape.clips, shape.frames, -1)
            question_features = _question_means(text.float(), batch, shape.questions)
            rank = self._rank_loss(frame_features, question_features, batch)
        answer = (losses * batch["weight"]).sum() / batch["weight"].sum()
        question_loss = total / lengths.clamp(min=1)
        return Result(answer, word, rank, question_loss, wrong == 0, frame_features, question_features)

    def _hidden(self, visual: Tensor, text: Tensor, batch: dict[str, Tensor], shape: Shape) -> Tensor:
        """Last hidden states of the text [clips, T, hidden]."""
        clips, before = shape.clips, shape.prefix_tokens
        prefix = self.model.get_input_embeddings()(self.prefix_ids).expand(clips, -1, -1)
        newline = self.model.model.image_newline.expand(clips, 1, -1)
        embeds = torch.cat([prefix, visual.to(prefix.dtype), newline, text], dim=1)
        shared = torch.arange(before, device=text.device).expand(clips, -1)
        positions = torch.cat([shared, batch["position"]], dim=1)
        segments = torch.cat([torch.zeros_like(shared), batch["segment"]], dim=1)
        visible = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
        mask = (visible & torch.ones_like(visible[0]).tril())[:, None]
        output = self.model.model.language_model(
            inputs_embeds=embeds, attention_mask={"full_attention": mask}, position_ids=positions, use_cache=False
        )
        hidden: Tensor = output.last_hidden_state[:, before:]
        return hidden

    def _word_loss(self, frame_features: Tensor, words: Tensor, shown: Tensor) -> Tensor:
        """Sigmoid loss of every (frame, content word) pair (Zhai et al. 2023, arXiv 2303.15343)."""
        logits = frame_features @ F.normalize(words.float(), dim=-1).T * self.word_scale.exp() + self.word_bias
        balance = torch.full_like(self.word_bias, 8.0)  # few of the words are shown in a frame
        return F.binary_cross_entropy_with_logits(logits, shown.float(), pos_weight=balance)

    def _rank_loss(self, frame_features: Tensor, question_features: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Makes eq 8 rank frames that show the asked thing over the clip's other frames."""
        scores = question_features @ frame_features.transpose(1, 2)
        logits = (scores - scores.mean(-1, keepdim=True)) * self.rank_scale.exp()
        relevant = batch["relevant"].float()
        losses = F.binary_cross_entropy_with_logits(logits, relevant, reduction="none")
        inside = (losses * relevant).sum(-1) / relevant.sum(-1).clamp(min=1)
        outside = (losses * (1 - relevant)).sum(-1) / (1 - relevant).sum(-1).clamp(min=1)
        ranked = batch["ranked"].float()
        return ((inside + outside) / 2 * ranked).sum() / ranked.sum().clamp(min=1)


def _question_means(text: Tensor, batch: dict[str, Tensor], questions: int) -> Tensor:
    """Mean of the normalised embeddings of the typed tokens of each question: [clips, Q, hidden]."""
    numbers = torch.arange(1, questions + 1, device=text.device)
    member = ((batch["segment"][:, None] == numbers[:, None]) & batch["typed"][:, None]).float()
    return member @ F.normalize(text, dim=-1) / member.sum(-1, keepdim=True).clamp(min=1)
