"""From a video file and a question to a result: the stages in order, one direction (docs/architecture.md)."""

from __future__ import annotations

from typing import Protocol

from wq_cli.config import Settings
from wq_cli.results import AskResult, InspectResult


class Listener(Protocol):
    """Hears about a run while it goes on. Stages: load, decode, encode, score, prefill, generate."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A stage begins; `total` steps where they can be counted."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of the stage are done."""

    def prepared(self, result: AskResult) -> None:
        """The cache is sealed: everything is known but the answer (`answer` is empty, decode times are None)."""

    def token(self, text: str) -> None:
        """A piece of the answer."""


def ask(video: str, prompt: str, settings: Settings, listener: Listener) -> AskResult: ...


def inspect(video: str, prompts: list[str], settings: Settings, listener: Listener) -> InspectResult: ...
