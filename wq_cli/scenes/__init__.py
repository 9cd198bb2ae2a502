"""The demo world: scenes of everyday things, questions about them, and the small model trained on both."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
WEIGHTS = Path(__file__).parent / "weights"
COMMENT_PREFIX = "wq scenes"
