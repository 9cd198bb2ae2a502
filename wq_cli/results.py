"""What a run produced, as plain data: the tables, the PNG and the JSON are all drawn from these.

Every key carries its unit. `SCHEMA_VERSION` changes when a key is renamed or removed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA_VERSION = 1

WindowRole = Literal["first", "scored", "tail"]


@dataclass(frozen=True)
class WindowResult:
    """One window of visual tokens.

    Attributes:
        index: Position in the video, 0 first; the tail comes last.
        role: `first` and `tail` stay at full precision whatever their score.
        tokens: Number of visual tokens.
        first_frame, last_frame: Sampled frames it touches, inclusive.
        start_seconds, end_seconds: Time shown by those frames, counted from the first frame of the video.
        similarity: Raw score, eq 8 (None for a tail, which is never scored).
        relevance: Score as it meets the thresholds, in [0, 1] unless `--score-norm raw` (None when not scored).
        key_bits, value_bits: Width in each layer, [layers].
    """

    index: int
    role: WindowRole
    tokens: int
    first_frame: int
    last_frame: int
    start_seconds: float
    end_seconds: float
    similarity: float | None
    relevance: float | None
    key_bits: tuple[int, ...]
    value_bits: tuple[int, ...]


@dataclass(frozen=True)
class LayerResult:
    """One decoder layer: its sensitivity (eq 9), thresholds (eqs 10, 11) and windows per key width."""

    index: int
    sensitivity: float | None
    threshold_low: float | None
    threshold_high: float | None
    windows_per_bits: dict[int, int]


@dataclass(frozen=True)
class VideoResult:
    """What was read from the file."""

    path: str
    width: int
    height: int
    duration_seconds: float
    frames: int
    frames_requested: int | None
    pts_seconds: tuple[float, ...]
    rotation_degrees: int
    has_audio: bool
    is_scene: bool


@dataclass(frozen=True)
class ModelResult:
    """What answered, where it ran and why there."""

    name: str
    model_type: str
    is_demo: bool
    device: str
    dtype: str
    backend: str
    backend_reason: str
    layers: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class PolicyResult:
    """The policy and the settings that shaped its plan."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class MemoryResult:
    """Bytes of tensors that exist after sealing.

    Attributes:
        kv_bytes: Whole cache: codes, scales, minima, full-precision parts, padding, room for new tokens.
        kv_bytes_full: The same tokens at full precision.
        effective_bits: Bits per stored element of the *visual* tokens, metadata and full-precision parts included.
        metadata_bytes: Scales and minima alone.
        peak_bytes: Peak of the device's allocator, or of the process on a CPU (None when it cannot be read).
    """

    kv_bytes: int
    kv_bytes_full: int
    effective_bits: float
    metadata_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class TimingResult:
    """Milliseconds of each stage; the names are those of the progress line.

    Attributes:
        search_ms: Scores and bit plan.
        first_token_ms: Prefill, sealing included, up to the first token.
        seal_ms: Quantizing and packing alone.
        decode_ms_per_token: Median over the steps after the first token without the one that compiles (None when there
            was none).
        steps: How those steps ran: as a CUDA graph, or why not; None when there were too few to tell.
        compile_ms: First of those steps with the decoder's layers compiled, compilation included; None where they ran
            as they are.
    """

    load_ms: float
    decode_ms: float
    encode_ms: float
    search_ms: float
    first_token_ms: float
    seal_ms: float
    decode_ms_per_token: float | None
    tokens_per_second: float | None
    steps: str | None = None
    compile_ms: float | None = None


@dataclass(frozen=True)
class InspectResult:
    """The map without an answer: one list of windows per prompt.

    Attributes:
        windows: [prompts][windows]; times and roles agree between prompts, scores and bits differ.
    """

    command: str
    video: VideoResult
    model: ModelResult
    policy: PolicyResult
    prompts: tuple[str, ...]
    windows: tuple[tuple[WindowResult, ...], ...]
    layers: tuple[LayerResult, ...]
    visual_tokens: int
    window_size: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class AskResult:
    """One question and its answer."""

    command: str
    video: VideoResult
    model: ModelResult
    policy: PolicyResult
    prompt: str
    windows: tuple[WindowResult, ...]
    layers: tuple[LayerResult, ...]
    visual_tokens: int
    text_tokens: int
    window_size: int
    memory: MemoryResult
    timing: TimingResult
    answer: str
    answer_tokens: int
    finish_reason: Literal["stop", "length"]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchRow:
    """One policy, or one of transformers' caches, measured on one clip.

    Attributes:
        policy: Its name.
        effective_bits: Of the visual tokens; of all tokens for a cache of transformers, which treats them alike.
        search_ms, seal_ms: None for a cache of transformers, which does neither.
        kl_to_full: Mean KL(full || policy) in nats over the answer positions, question asked through the packed cache.
        greedy_agreement: Share of those positions with the same most likely token.
        warmup_ms: First prefill and decode, compilation included; kept out of every other figure.
        runs: Timed runs after it; times are medians over them.
        first_token_ms_range, decode_ms_per_token_range: Lowest and highest of the runs.
        is_peer: Whether it is a cache of transformers.
        compile_ms: First step of all with the decoder's layers compiled, compilation included; None where they ran as
            they are.
        compile_obstacle: Why they did, though asked to be compiled.
    """

    policy: str
    effective_bits: float
    kv_bytes: int
    kv_bytes_full: int
    peak_bytes: int | None
    search_ms: float | None
    seal_ms: float | None
    first_token_ms: float
    decode_ms_per_token: float
    tokens_per_second: float
    kl_to_full: float | None
    greedy_agreement: float | None
    warmup_ms: float
    runs: int
    first_token_ms_range: tuple[float, float]
    decode_ms_per_token_range: tuple[float, float]
    is_peer: bool = False
    compile_ms: float | None = None
    compile_obstacle: str | None = None


@dataclass(frozen=True)
class BenchResult:
    """The policies side by side on the same clip, question and prefill rule."""

    command: str
    video: VideoResult | None
    model: ModelResult
    prompt: str
    batch: int
    visual_tokens: int
    decode_tokens: int
    fidelity_tokens: int
    rows: tuple[BenchRow, ...]
    settings: dict[str, Any]
    versions: dict[str, str]
    date: str
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvalRow:
    """One variant of the cache over a suite; every question was read through it.

    Attributes:
        label: What it is called in tables: a policy, with its budget where it has one, or a changed setting.
        bits_asked: Its budget in average effective bits; None without one.
        accuracy: Share of questions whose right option was chosen.
        standard_error, kl_standard_error: Clustered by clip, since questions on one clip are not independent; None for
            one clip.
        families: Accuracy of each family.
        kl_to_full: Mean KL(full || variant) in nats over the tokens of the full-precision answers.
        greedy_agreement: Share of those tokens that are the likeliest for the variant too.
        effective_bits, kv_bytes, kv_bytes_full, metadata_bytes: Means over the questions.
        search_ms: Scores and plans of a question, median.
        tokens_per_second: Of its own answers, the first token of each left out; None where none was longer.
    """

    label: str
    policy: str
    bits_asked: float | None
    accuracy: float
    standard_error: float | None
    families: dict[str, float]
    kl_to_full: float
    kl_standard_error: float | None
    greedy_agreement: float
    effective_bits: float
    kv_bytes: float
    kv_bytes_full: float
    metadata_bytes: float
    search_ms: float
    tokens_per_second: float | None


@dataclass(frozen=True)
class SkippedResult:
    """A question that could not be asked."""

    id: str
    reason: str


@dataclass(frozen=True)
class EvalResult:
    """Variants of the cache over the questions of a suite, question after cache, the same prefill rule for all.

    Attributes:
        answer: How an option was chosen: `likelihood` or `letter`.
        answer_tokens: Longest answer over which KL and agreement are taken.
    """

    command: str
    suite: str
    model: ModelResult
    settings: dict[str, Any]
    seed: int
    frames: int
    clips: int
    questions: int
    answer: str
    answer_tokens: int
    rows: tuple[EvalRow, ...]
    versions: dict[str, str]
    date: str
    skipped: tuple[SkippedResult, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class AblationResult:
    """One of the paper's experiments on settings, each row a changed one.

    Attributes:
        name: What `wq bench ablation` calls it.
        source: Table or figure of the paper.
        paper: What the paper has for a row, by its label, in its own measures.
    """

    command: str
    name: str
    source: str
    paper: dict[str, str]
    evaluation: EvalResult


@dataclass(frozen=True)
class CurveResult:
    """One of the paper's looks inside a model: values along windows or layers.

    Attributes:
        name, source: As in `AblationResult`.
        says: What the curves are, in one sentence.
        curves: By label; the first is the mean over the questions.
    """

    command: str
    name: str
    source: str
    says: str
    x_label: str
    y_label: str
    curves: dict[str, tuple[float, ...]]
    model: ModelResult
    questions: int
    frames: int
    seed: int
    versions: dict[str, str]
    date: str


Result = AskResult | InspectResult | BenchResult | EvalResult


@dataclass(frozen=True)
class Failure:
    """What `--json` prints when a command fails."""

    command: str
    error: str
    hint: str | None
    exit_code: int
    kind: str = field(default="error")


def to_dict(result: Any) -> dict[str, Any]:
    """A result as JSON-ready data, with the schema version in front."""
    return {"schema_version": SCHEMA_VERSION, **asdict(result)}
