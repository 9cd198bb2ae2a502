"""A real file through the whole pipeline with a tiny checkpoint: times, roles, bytes, answer."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from rich.console import Console
from tiny_models import llava_onevision

from wq_cli import bench, pipeline
from wq_cli.config import Generation, Limits, Quantization, Runtime, Sampling, Settings
from wq_cli.errors import WqError
from wq_cli.report import summary
from wq_cli.report.format import ASCII
from wq_cli.results import AskResult

SECONDS, FPS = 8, 10


class Recorder:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.prepared_with: AskResult | None = None
        self.text = ""

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append(name)

    def advance(self, steps: int = 1) -> None: ...

    def prepared(self, result: AskResult) -> None:
        assert self.text == ""
        self.prepared_with = result

    def token(self, text: str) -> None:
        self.text += text


def write_clip(path: Path, codec: str) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for index in range(SECONDS * FPS):
            picture = np.full((64, 96, 3), index * 3, np.uint8)
            picture[:, : index + 1, 1] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def turn_a_quarter(path: Path) -> Path:
    """Write a rotation of 90 degrees into the track header, as phones do."""
    data = bytearray(path.read_bytes())
    header = data.find(b"tkhd")
    matrix = header + 4 + 4 + (32 if data[header + 4] == 1 else 20) + 16
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("clips")
    return {
        "mp4": str(write_clip(folder / "a.mp4", "libx264")),
        "webm": str(write_clip(folder / "a.webm", "libvpx-vp9")),
        "mov": str(turn_a_quarter(write_clip(folder / "phone.mov", "libx264"))),
    }


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = llava_onevision(tmp_path_factory.mktemp("model"))
    return Settings(
        Sampling(frames=40), Quantization(window=8), Generation(max_new_tokens=6), Runtime(model=str(folder))
    )


@pytest.mark.parametrize("kind", ["mp4", "webm", "mov"])
def test_ask(files: dict[str, str], settings: Settings, kind: str) -> None:
    heard = Recorder()
    result = pipeline.ask(files[kind], "what happens?", settings, heard)
    assert heard.stages == ["load", "decode", "encode", "score", "prefill", "generate"]
    assert heard.prepared_with is not None and heard.prepared_with.answer == ""
    assert heard.text.strip() == result.answer
    assert 1 <= result.answer_tokens <= 6

    assert result.video.frames == 40 and result.visual_tokens == 161
    assert [w.role for w in result.windows] == ["first", *["scored"] * 19, "tail"]
    assert [w.tokens for w in result.windows] == [*[8] * 20, 1]
    # Two frames a window, each standing for a fifth of a second.
    for window in result.windows[:-1]:
        assert window.start_seconds == pytest.approx(0.4 * window.index, abs=0.06)
        assert window.end_seconds == pytest.approx(0.4 * (window.index + 1), abs=0.06)
    assert result.windows[0].key_bits == (16, 16, 16) == result.windows[-1].value_bits
    assert max(w.relevance for w in result.windows if w.relevance is not None) == 1
    if kind == "mov":
        assert (result.video.width, result.video.height) == (64, 96)


def test_layers_and_windows_tell_the_same_plan(files: dict[str, str], settings: Settings) -> None:
    result = pipeline.ask(files["mp4"], "what happens?", settings, Recorder())
    for layer in result.layers:
        assert layer.sensitivity is not None and layer.threshold_low is not None and layer.threshold_high is not None
        counted: dict[int, int] = {}
        for window in result.windows:
            if window.role == "tail":
                continue
            bits = window.key_bits[layer.index]
            counted[bits] = counted.get(bits, 0) + 1
            if window.role == "scored":
                assert window.relevance is not None
                expected = 16 if window.relevance > layer.threshold_high else 4
                assert bits == (2 if window.relevance < layer.threshold_low else expected)
        assert counted == layer.windows_per_bits


def test_inspect_scores_each_prompt(files: dict[str, str], settings: Settings) -> None:
    result, clip = pipeline.inspect(files["mp4"], ["a dog", "what moves left"], settings, Recorder())
    assert len(result.windows) == 2 and clip.frames.shape[0] == 40
    first, second = ([w.similarity for w in row] for row in result.windows)
    assert first != second
    assert [w.start_seconds for w in result.windows[0]] == [w.start_seconds for w in result.windows[1]]
    asked = pipeline.ask(files["mp4"], "a dog", settings, Recorder())
    assert [w.key_bits for w in result.windows[0]] == [w.key_bits for w in asked.windows]


def test_a_policy_with_windows_of_its_own_has_one_map(files: dict[str, str], settings: Settings) -> None:
    focus = replace(settings, quantization=Quantization("focus:window=16", window=8))
    asked = pipeline.ask(files["mp4"], "a dog", focus, Recorder())
    assert asked.window_size == 16 and [w.tokens for w in asked.windows] == [*[16] * 10, 1]
    assert not any("middle width" in notice for notice in asked.notices)
    assert (asked.policy.settings["window"], asked.policy.settings["fixed_first_window"]) == (16, False)
    assert "`focus` takes windows of 16, not 8: `focus:window=8` is heard" in asked.notices
    result, _ = pipeline.inspect(files["mp4"], ["what moves left", "a dog"], focus, Recorder())
    assert (result.policy, result.notices[0]) == (asked.policy, asked.notices[0])
    assert result.windows[1] == asked.windows  # bits follow attention, which only a prefill tells


def test_memory_budget_bounds_the_cache(files: dict[str, str], settings: Settings) -> None:
    least = pipeline.ask(files["mp4"], "a dog", replace(settings, quantization=Quantization("rtn2", 8)), Recorder())
    budget = least.memory.kv_bytes + 4000
    bounded = replace(settings, quantization=Quantization(window=8, kv_memory_bytes=budget))
    result = pipeline.ask(files["mp4"], "a dog", bounded, Recorder())
    assert least.memory.kv_bytes < result.memory.kv_bytes <= budget


def test_bench_with_a_budget_leaves_uniform_policies_alone(files: dict[str, str], settings: Settings) -> None:
    bounded = replace(settings, quantization=Quantization(window=8, bits=14.0))
    result = bench.run(
        files["mp4"], "a dog", bounded, Recorder(), policies=["windowquant", "rtn4"], decode_tokens=1, fidelity_tokens=0
    )
    ranked, uniform = result.rows
    assert 13 < ranked.effective_bits <= 14 and uniform.effective_bits != ranked.effective_bits


def test_budget_that_cannot_be_kept(files: dict[str, str], settings: Settings) -> None:
    with pytest.raises(WqError, match="needs at least"):
        pipeline.ask(files["mp4"], "a dog", replace(settings, quantization=Quantization(bits=1.0)), Recorder())


@pytest.mark.parametrize("after", [False, True])
def test_full_precision_answer_does_not_depend_on_when_the_question_comes(
    files: dict[str, str], settings: Settings, after: bool
) -> None:
    full = replace(settings, quantization=Quantization("fp16", 8))
    plain = pipeline.ask(files["mp4"], "what happens?", full, Recorder())
    generation = Generation(max_new_tokens=6, question_after_cache=after)
    assert pipeline.ask(files["mp4"], "what happens?", replace(full, generation=generation), Recorder()).answer == (
        plain.answer
    )


def test_sampling_is_seeded(files: dict[str, str], settings: Settings) -> None:
    def sampled(seed: int) -> str:
        generation = Generation(max_new_tokens=12, temperature=2.0, seed=seed)
        return pipeline.ask(files["mp4"], "a dog", replace(settings, generation=generation), Recorder()).answer

    assert sampled(1) == sampled(1)
    assert len({sampled(seed) for seed in range(4)}) > 1


def test_one_frame(files: dict[str, str], settings: Settings) -> None:
    single = replace(settings, sampling=Sampling(frames=1), quantization=Quantization())
    result = pipeline.ask(files["mp4"], "what happens?", single, Recorder())
    assert [w.role for w in result.windows] == ["tail"]
    assert result.memory.kv_bytes == result.memory.kv_bytes_full


def test_too_long_for_the_model_says_what_fits(files: dict[str, str], settings: Settings) -> None:
    def ask(frames: int, new_tokens: int) -> AskResult:
        chosen = replace(settings, sampling=Sampling(frames=frames), generation=Generation(max_new_tokens=new_tokens))
        return pipeline.ask(files["mp4"], "what happens?", chosen, Recorder())

    with pytest.raises(WqError, match="4096 positions") as caught:
        ask(40, 4000)
    fits = int((caught.value.hint or "").split("`")[1].removeprefix("--frames "))
    assert 0 < fits < 40
    with pytest.raises(WqError, match="4096 positions"):
        ask(fits + 1, 4000)
    with pytest.raises(WqError) as caught:
        ask(1, 4096)
    assert "--max-new-tokens" in (caught.value.hint or "")


def test_bench_says_when_frames_are_missing(files: dict[str, str], settings: Settings) -> None:
    many = replace(settings, sampling=Sampling(frames=100))
    result = bench.run(files["mp4"], "q", many, Recorder(), policies=["rtn2"], decode_tokens=1, fidelity_tokens=0)
    assert result.notices == ("only 80 frames available, 100 asked for: each is used once",)


def test_bench_rows(files: dict[str, str], settings: Settings) -> None:
    result = bench.run(files["mp4"], "what happens?", settings, Recorder(), decode_tokens=3, fidelity_tokens=8)
    rows = {row.policy: row for row in result.rows}
    assert list(rows) == list(bench.DEFAULT_POLICIES)
    assert rows["fp16"].kl_to_full == 0 and rows["fp16"].greedy_agreement == 1
    assert rows["fp16"].effective_bits == 32  # float32 here
    kl = {name: row.kl_to_full or 0.0 for name, row in rows.items()}
    assert kl["rtn8"] < kl["rtn4"] < kl["rtn2"]
    assert rows["rtn2"].kv_bytes < rows["windowquant"].kv_bytes < rows["fp16"].kv_bytes
    assert rows["random"].effective_bits == rows["windowquant"].effective_bits


def test_a_cap_on_visual_tokens_takes_fewer_frames(files: dict[str, str], settings: Settings) -> None:
    # 4 tokens a frame and one newline at the end.
    capped = replace(settings, limits=Limits(max_visual_tokens=44))
    result = pipeline.ask(files["mp4"], "what happens?", capped, Recorder())
    assert (result.video.frames, result.visual_tokens, result.video.frames_requested) == (10, 41, 40)
    assert result.notices == ("10 of 40 frames are used: more have over 44 visual tokens (`--max-visual-tokens`)",)
    assert result.video.pts_seconds == pytest.approx([0.4 + 0.8 * i for i in range(10)], abs=0.11)
    ends = [window.end_seconds for window in result.windows]
    assert ends[-1] == pytest.approx(8)
    just = replace(settings, limits=Limits(max_visual_tokens=161))
    assert pipeline.ask(files["mp4"], "what happens?", just, Recorder()).notices == ()
    with pytest.raises(WqError, match="one frame has 5 visual tokens, more than 4"):
        pipeline.ask(files["mp4"], "q", replace(settings, limits=Limits(max_visual_tokens=4)), Recorder())


def test_the_other_limits_reach_the_reader(files: dict[str, str], settings: Settings) -> None:
    for limits, flag in (
        (Limits(max_frames=39), "--max-frames"),
        (Limits(max_pixels=96), "--max-pixels"),
        (Limits(max_frames_walked=79), "--max-frames-walked"),
    ):
        with pytest.raises(WqError) as caught:
            pipeline.ask(files["mp4"], "q", replace(settings, limits=limits), Recorder())
        assert f"`{flag}`" in (caught.value.hint or "")


def test_sound_is_named_where_there_is_some(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "sound.mkv"
    with av.open(str(path), "w") as container:
        video, audio = container.add_stream("mpeg4", rate=FPS), container.add_stream("pcm_s16le", rate=8000)
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        for _ in range(4):
            container.mux(video.encode(av.VideoFrame.from_ndarray(np.zeros((64, 96, 3), np.uint8), format="rgb24")))
        wave = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        wave.sample_rate = 8000
        container.mux(audio.encode(wave))
        for stream in (video, audio):
            container.mux(stream.encode(None))
    result = pipeline.ask(str(path), "what happens?", replace(settings, sampling=Sampling(frames=4)), Recorder())
    assert result.video.has_audio
    for verbose in (False, True):
        console = Console(width=200, file=io.StringIO())
        console.print(summary.ask_summary(result, ASCII, verbose=verbose))
        assert console.file.getvalue().count("sound is ignored") == int(verbose)
