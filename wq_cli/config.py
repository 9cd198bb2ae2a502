"""Frozen settings of a run. Commands fill them from options and the profile; nothing below reads a command line."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from wq_cli.errors import UsageError

ScoreNorm = Literal["minmax", "rank", "raw"]
ScoreText = Literal["question", "prompt"]
Scorer = Literal["cosine", "pearson", "euclidean"]
ZeroPoint = Literal["float", "integer"]
SensitivitySource = Literal["auto", "online", "profile"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Weights = Literal["full", "4bit"]
Backend = Literal["auto", "triton", "torch"]
Sample = Literal["uniform", "fps", "scene", "keyframes"]
AnswerMode = Literal["likelihood", "letter"]

# Bits that keys and values can be stored at; 16 is the model's own dtype.
WIDTHS = (16, 8, 4, 2)

# Seeds that both PyTorch and NumPy take.
SEEDS = 2**64


def _check_seed(seed: int) -> None:
    if not 0 <= seed < SEEDS:
        raise UsageError(f"`--seed {seed}` is not in 0 to 2**64 - 1")


@dataclass(frozen=True)
class Sampling:
    """Which frames are read: a number of them, or a rate, between two times in seconds.

    Attributes:
        sample: How they are chosen; `fps` where a rate is given, else `uniform` when None.
    """

    sample: Sample | None = None
    frames: int | None = None
    fps: float | None = None
    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        if self.sample == "fps" and self.fps is None:
            raise UsageError("`--sample fps` needs a rate", "give `--fps`")
        if self.fps is not None and self.sample not in (None, "fps"):
            raise UsageError(f"`--sample {self.sample}` takes a number of frames, not a rate", "give `--frames`")
        if self.frames is not None and self.fps is not None:
            raise UsageError("`--frames` and `--fps` cannot be used together", "give one of them")
        if self.frames is not None and self.frames < 1:
            raise UsageError(f"`--frames {self.frames}` is not positive")
        if self.fps is not None and not 0 < self.fps < float("inf"):
            raise UsageError(f"`--fps {self.fps}` is not positive")
        if self.start is not None and self.start < 0:
            raise UsageError(f"`--start {self.start}` is negative")
        if self.end is not None and self.end <= (self.start or 0.0):
            raise UsageError(f"`--end {self.end}` is not after `--start {self.start or 0.0}`")


@dataclass(frozen=True)
class Limits:
    """Caps that keep a small file from unpacking into gigabytes; each message names the flag that lifts it.

    Attributes:
        max_frames_walked: Pictures looked at in one file, decoded or not.
        max_pixels: Pixels of one picture, as stored and as shown.
        max_frames: Frames of one clip.
        max_visual_tokens: Visual tokens of one clip: fewer frames are used where it would have more.
        max_copied_bytes: Bytes taken from standard input, a pipe or a web address.
        timeout_seconds: Longest silence of a web server.
    """

    max_frames_walked: int = 2_000_000
    max_pixels: int = 2**26
    max_frames: int = 4096
    max_visual_tokens: int | None = None
    max_copied_bytes: int = 2**33
    timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value <= 0:
                option = name.removesuffix("_seconds").replace("_", "-")
                raise UsageError(f"`--{option} {value}` is not positive")


@dataclass(frozen=True)
class Quantization:
    """How the visual KV cache is cut, scored, planned and stored (docs/method.md).

    Attributes:
        policy: Name in the registry of `wq_cli.policies`.
        window: S, visual tokens per window.
        alpha: Eqs 10 and 11.
        bits: Budget in average effective bits of the visual tokens; replaces the thresholds.
        kv_memory_bytes: Budget for the whole cache in bytes; replaces the thresholds.
        kv_split: Widths of (keys, values) for each of the levels high, middle, low, e.g. ((16, 16), (8, 4), (4, 2)).
        reorder: False keeps windows in time order (ablation C of the paper).
        seed: For the random policy.
    """

    policy: str = "windowquant"
    window: int = 32
    alpha: float = 2.0
    score_norm: ScoreNorm = "minmax"
    score_text: ScoreText = "question"
    scorer: Scorer = "cosine"
    sensitivity: SensitivitySource = "auto"
    fixed_first_window: bool = True
    reorder: bool = True
    zero_point: ZeroPoint = "float"
    kv_split: tuple[tuple[int, int], ...] | None = None
    bits: float | None = None
    kv_memory_bytes: int | None = None
    kv_dtype: Dtype = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise UsageError(f"`--window {self.window}` is not positive")
        if self.window >= 2**31:
            raise UsageError(f"`--window {self.window}` is not in 1 to 2**31 - 1")
        if not 0 < self.alpha < float("inf"):
            raise UsageError(f"`--alpha {self.alpha}` is not positive")
        if self.bits is not None and self.kv_memory_bytes is not None:
            raise UsageError("`--bits` and `--kv-memory` cannot be used together", "give one of them")
        if self.bits is not None and self.bits <= 0:
            raise UsageError(f"`--bits {self.bits}` is not positive")
        if self.kv_memory_bytes is not None and self.kv_memory_bytes <= 0:
            raise UsageError(f"`--kv-memory {self.kv_memory_bytes}` is not positive")
        if self.kv_split is not None:
            self._check_split(self.kv_split)
        _check_seed(self.seed)

    @staticmethod
    def _check_split(levels: tuple[tuple[int, int], ...]) -> None:
        shown = ",".join(f"{key}/{value}" for key, value in levels)
        if any(bits not in WIDTHS for pair in levels for bits in pair):
            raise UsageError(
                f"`--kv-split {shown}` has a width that is not stored", f"widths: {', '.join(map(str, WIDTHS))}"
            )
        for higher, lower in pairwise(levels):
            if lower[0] > higher[0] or lower[1] > higher[1]:
                raise UsageError(f"`--kv-split {shown}` gets wider from high to low", "give high, middle, low")


@dataclass(frozen=True)
class Generation:
    """How the answer is drawn.

    Attributes:
        temperature: 0 is greedy.
        compile_layers: Whether the decoder's layers are compiled for the steps after the first token.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    question_after_cache: bool = False
    compile_layers: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"`--max-new-tokens {self.max_new_tokens}` is not positive")
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"`--temperature {self.temperature}` is negative")
        _check_seed(self.seed)


@dataclass(frozen=True)
class Runtime:
    """Which model runs where.

    Attributes:
        device: `auto`, `multi` for layers spread over all GPUs, or a device of PyTorch.
        weights: Whether the decoder's weights are kept in 4 bits.
        offline: Nothing is downloaded.
    """

    profile: str | None = None
    model: str | None = None
    device: str = "auto"
    dtype: Dtype = "auto"
    weights: Weights = "full"
    backend: Backend = "auto"
    offline: bool = False


@dataclass(frozen=True)
class Settings:
    """Everything a run depends on."""

    sampling: Sampling = Sampling()
    quantization: Quantization = Quantization()
    generation: Generation = Generation()
    runtime: Runtime = Runtime()
    limits: Limits = Limits()
