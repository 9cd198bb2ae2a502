"""Pixels against equations, and clips for people against the pictures that training draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from wq_cli.config import Sampling
from wq_cli.scenes import atlas, render
from wq_cli.scenes.make import make
from wq_cli.scenes.model import IMAGE_SIZE, MEAN, STD, build_processor
from wq_cli.scenes.suite import MADE_FOR_FRAMES
from wq_cli.scenes.things import SPRITES
from wq_cli.scenes.world import CLIP_SEEDS, frame_times, generate, sample
from wq_cli.video import read

SIDE = 4 * atlas.CELL
PALE = torch.tensor([[0.9, 0.8, 0.7, 0.5, 0.6, 0.7, 0.25, 0.5]])
GREY = torch.tensor([[*[0.5] * 6, 9.0, 9.0]])  # its light is far away


def drawn(
    sprite: str, pose: tuple[float, ...], tint: tuple[float, ...] = (1.0, 1.0, 1.0), under: torch.Tensor = PALE
) -> torch.Tensor:
    """One frame [3, SIDE, SIDE] with one thing."""
    tensors = torch.tensor([[SPRITES.index(sprite)]]), torch.tensor([[pose]]), torch.tensor([[tint]])
    return render.render(*tensors, under, SIDE, supersampling=1)[0]


def background() -> torch.Tensor:
    """The gradient and its light, pixel by pixel in float64: [3, SIDE, SIDE]."""
    at = (np.arange(SIDE) + 0.5) / SIDE
    top, bottom, (x, y) = (PALE[0].double().numpy()[i:j] for i, j in ((0, 3), (3, 6), (6, 8)))
    plain = top[:, None, None] * (1 - at[:, None]) + bottom[:, None, None] * at[:, None]
    squared = (at[None, :] - x) ** 2 + (at[:, None] - y) ** 2
    return torch.from_numpy(plain + (1 - plain) * 0.5 * np.exp(-squared / 0.06))


def test_background_by_hand() -> None:
    nothing = drawn("dog", (0.5, 0.5, 0.3, 0.0, 0.0))
    torch.testing.assert_close(nothing.double(), background(), rtol=1e-5, atol=1e-6)


def test_a_sprite_drawn_at_its_own_size_is_blended_pixel_by_pixel() -> None:
    """A quarter of the frame is one cell of the atlas: no pixel is interpolated."""
    cell = torch.from_numpy(atlas.load()[SPRITES.index("star")]).double()
    tint = (0.9, 0.2, 0.4)
    frame = drawn("star", (0.5, 0.375, 0.25, 0.0, 1.0), tint).double()
    expected = background()
    box = expected[:, SIDE // 4 : SIDE // 2, 3 * SIDE // 8 : 5 * SIDE // 8]
    box *= 1 - cell[3]
    box += cell[:3] * torch.tensor(tint)[:, None, None]
    torch.testing.assert_close(frame, expected, rtol=0, atol=2e-5)


def test_a_quarter_turn_is_clockwise_on_the_screen() -> None:
    still, turned = (drawn("guitar", (0.5, 0.5, 0.5, angle, 1.0), under=GREY) for angle in (0.0, torch.pi / 2))
    torch.testing.assert_close(turned, still.rot90(-1, (1, 2)), rtol=0, atol=1e-4)
    assert (turned - still).abs().max() > 0.3


def test_size_and_place_of_a_circle() -> None:
    frame = drawn("circle", (0.3, 0.6, 0.4, 0.0, 1.0), (0.0, 0.0, 0.0))
    dark = frame.sum(0) < 0.5 * background().sum(0)
    rows, columns = (axis.double() for axis in torch.nonzero(dark, as_tuple=True))
    radius = 0.4 * SIDE / 2 * (atlas.CELL - 4) / atlas.CELL  # sprites have a margin of two pixels
    assert len(rows) == pytest.approx(torch.pi * radius**2, rel=0.01)
    assert (columns.mean() + 0.5) / SIDE == pytest.approx(0.3, abs=2e-3)
    assert (rows.mean() + 0.5) / SIDE == pytest.approx(0.6, abs=2e-3)


@pytest.mark.parametrize("seed", range(3))
def test_drawing_only_the_covered_box_changes_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = generate(seed)
    tensors = render.to_tensors(sample(world, frame_times(world.seconds, 16)))
    boxed = render.render(*tensors, IMAGE_SIZE)
    monkeypatch.setattr(render, "_covered", lambda pose, side: (0, 0, side, side))
    torch.testing.assert_close(boxed, render.render(*tensors, IMAGE_SIZE), rtol=0, atol=5e-5)


def test_layers_that_are_seen_are_kept() -> None:
    """A thing out of sight must not take the place of one that is seen."""
    arrays = sample(generate(0), np.arange(8) / 10)
    arrays.pose[..., 4] = [0, 1, 0, 1]
    _, pose, _, _ = render.to_tensors(arrays)
    np.testing.assert_array_equal(pose.numpy(), arrays.pose[:, [1, 3]])


def test_resize_is_that_of_pillow() -> None:
    picture = np.random.default_rng(0).random((32, 48), np.float32)
    rows, columns = (render.resize_matrix(n, m, torch.device("cpu")) for n, m in ((32, 16), (48, 24)))
    ours = rows @ torch.from_numpy(picture) @ columns.T
    theirs = np.asarray(Image.fromarray(picture, "F").resize((24, 16), Image.Resampling.BICUBIC))
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)


def test_augmentation_keeps_clips_together_and_stays_mild() -> None:
    generator = torch.Generator().manual_seed(1)
    flat = torch.full((4 * 6, 3, 32, 32), 0.4)
    means = render.augment(flat, 4, generator).mean((1, 2, 3)).view(4, 6)
    assert (means - means[:, :1]).abs().max() < 2e-3  # noise averages out, light and contrast are the clip's
    assert means[:, 0].std() > 5e-3
    assert (means - 0.4).abs().max() <= 0.06 + 0.15 * 0.1 + 2e-3


@pytest.mark.parametrize("seed", [0, 3])
def test_a_decoded_clip_looks_as_training_draws_it(seed: int, untrained: tuple[Any, Any], tmp_path: Path) -> None:
    seconds, fps, frames = 4.0, 12.0, 16
    make(tmp_path / "clip.mp4", seed=seed, seconds=seconds, fps=fps)
    clip = read(tmp_path / "clip.mp4", Sampling(), default_frames=frames)
    processor = build_processor(untrained[1]).video_processor
    decoded = processor([clip.frames], return_tensors="pt")["pixel_values_videos"][0] * STD + MEAN
    on_display = np.floor(frame_times(seconds, frames) * fps) / fps
    world = generate(CLIP_SEEDS[seed], frames=MADE_FOR_FRAMES, seconds=seconds)
    ours = render.render(*render.to_tensors(sample(world, on_display)), IMAGE_SIZE)
    error = (decoded - ours).abs()
    assert error.mean() < 0.01
    assert error.max() < 0.15
