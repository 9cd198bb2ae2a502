"""Cocktail (arXiv 2503.23294): relevant chunks keep their precision, by thresholds that are relative to the scores.

    T_low = s_min + a (s_max - s_min)        T_high = s_max - b (s_max - s_min)

A chunk above T_high stays at full precision, one below T_low gets 2 bits, the others 4, in all layers alike.

Our reading, since no official code was read: a = 0.6, b = 0.1; a chunk is a window of visual tokens, scored by eq 8 of
WindowQuant in place of a text encoder that knows no pictures. What then remains is WindowQuant without its layers
(eqs 9-11) and without a fixed first window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from wq_cli.errors import UsageError
from wq_cli.policies.options import Options
from wq_cli.policies.windowquant import WindowQuant

if TYPE_CHECKING:
    from wq_cli.config import Quantization


@dataclass(frozen=True)
class CocktailOptions(Options):
    """Options of `cocktail`.

    Attributes:
        low: a, the share of the range of scores below which a chunk gets 2 bits.
        high: b, the share of it, from the top, in which a chunk stays at full precision.
    """

    low: float = 0.6
    high: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 - self.high <= 1:
            raise UsageError("`low` and `high` of `cocktail` must be 0 or more and at most 1 together")


class Cocktail(WindowQuant):
    """See the module. Relevance is scaled to 0 to 1 already, so that the thresholds are a and 1 - b."""

    needs_sensitivity: ClassVar[bool] = False
    options_type = CocktailOptions
    options: CocktailOptions

    def __init__(self, settings: Quantization) -> None:
        super().__init__(replace(settings, fixed_first_window=False))

    def thresholds(self, sensitivity: float | None) -> tuple[float, float] | None:
        return None if self._budget_levels is not None else (self.options.low, 1 - self.options.high)
