"""One JSON document a run."""

from __future__ import annotations

import json
import math
from typing import Any

from wq_cli.results import to_dict


def document(result: Any) -> str:
    """A result dataclass as JSON text, in ASCII so that every stdout can carry it; NaN and infinity become null."""
    return json.dumps(_finite(to_dict(result)), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
