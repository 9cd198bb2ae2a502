"""Draws sampled worlds with torch: 64x64 frames for training on a GPU, large frames for people on a CPU."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from wq_cli.scenes import atlas
from wq_cli.scenes.world import FrameArrays

SUPERSAMPLING = 2


def to_tensors(arrays: FrameArrays) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first four arguments of `render`, without layers that are empty in all frames."""
    used = arrays.pose[..., 4].any(axis=0)
    sprite, pose, tint = (torch.from_numpy(array[:, used]) for array in (arrays.sprite, arrays.pose, arrays.tint))
    return sprite, pose, tint, torch.from_numpy(arrays.background)


@cache
def sprites(device: torch.device, cell: int) -> Tensor:
    """Atlas at a resolution of `cell` pixels: [sprites, 4, cell, cell], premultiplied RGBA."""
    full = torch.from_numpy(atlas.load())
    return (full if cell == atlas.CELL else F.adaptive_avg_pool2d(full, cell)).to(device)


@cache
def resize_matrix(source: int, target: int, device: torch.device) -> Tensor:
    """The antialiased bicubic resize of the image processors as a matrix [target, source]."""
    columns = torch.eye(source)[None, None]
    resized = F.interpolate(columns, size=(target, source), mode="bicubic", antialias=True)
    return resized[0, 0].to(device)


def render(
    sprite: Tensor, pose: Tensor, tint: Tensor, background: Tensor, size: int, supersampling: int = SUPERSAMPLING
) -> Tensor:
    """Draws frames.

    Args:
        sprite: [N, L] int64, index in the atlas.
        pose: [N, L, 5] x, y, size, angle in radians, opacity; fractions of the frame.
        tint: [N, L, 3] in [0, 1].
        background: [N, 8] colour at the top, colour at the bottom, x and y of the light.
        size: Side of a frame in pixels.
        supersampling: Frames are drawn this many times larger, then resized as an image processor does.

    Returns:
        [N, 3, size, size] float32 in [0, 1].
    """
    side = size * supersampling
    frames = _background(background, side)
    table = sprites(frames.device, atlas.CELL if side > 2 * atlas.CELL else atlas.CELL // 2)
    for layer in range(sprite.shape[1]):
        left, top, right, bottom = _covered(pose[:, layer], side)
        x, y, extent, angle, opacity = pose[:, layer].float().unbind(-1)
        scale = 1 / extent.clamp(min=1e-3)
        cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
        # With the frame from -1 to 1: half the box's width and height, then the sprite's middle seen from the box's.
        half_x, half_y = (right - left) / side, (bottom - top) / side
        dx, dy = 2 * x - (left + right) / side, 2 * y - (top + bottom) / side
        rows = (cos * half_x, sin * half_y, -cos * dx - sin * dy, -sin * half_x, cos * half_y, sin * dx - cos * dy)
        theta = torch.stack(rows, dim=-1).view(-1, 2, 3)
        grid = F.affine_grid(theta, [len(theta), 4, bottom - top, right - left], align_corners=False)
        drawn = F.grid_sample(table[sprite[:, layer]], grid, align_corners=False) * opacity.view(-1, 1, 1, 1)
        box = frames[:, :, top:bottom, left:right]
        box.mul_(1 - drawn[:, 3:]).add_(drawn[:, :3] * tint[:, layer, :, None, None])
    if supersampling == 1:
        return frames.clamp_(0, 1)
    resize = resize_matrix(side, size, frames.device)
    return (resize @ frames @ resize.T).clamp(0, 1)


def _covered(pose: Tensor, side: int) -> tuple[int, int, int, int]:
    """Box (left, top, right, bottom) in pixels outside which a layer [N, 5] is empty in all frames.

    On a GPU it is the whole frame, since asking for positions would make the host wait.
    """
    if pose.is_cuda:
        return 0, 0, side, side
    reach = pose[:, 2:3] * 0.5**0.5 + 1 / side  # half the diagonal, in case the sprite is turned
    low = ((pose[:, :2] - reach).amin(0) * side).floor().clamp(0, side - 1).int().tolist()
    high = ((pose[:, :2] + reach).amax(0) * side).ceil().clamp(1, side).int().tolist()
    return low[0], low[1], max(high[0], low[0] + 1), max(high[1], low[1] + 1)


def _background(background: Tensor, side: int) -> Tensor:
    """Vertical gradient with one soft light: [N, 3, side, side]."""
    position = (torch.arange(side, device=background.device) + 0.5) / side
    top, bottom = background[:, :3, None, None], background[:, 3:6, None, None]
    gradient = top + (bottom - top) * position[:, None]
    fall = torch.exp(-((position - background[:, 6:, None]) ** 2) / 0.06)  # [N, 2, side]: along x, along y
    glow = (0.5 * fall[:, None, 1, :, None]) * fall[:, None, 0, None, :]
    return gradient.lerp(torch.ones_like(gradient), glow)


def augment(frames: Tensor, clips: int, generator: torch.Generator | None = None) -> Tensor:
    """Varies frames as a camera, an encoder and a resize would: light and contrast per clip, blur, noise.

    Args:
        frames: [clips * F, 3, H, W] in [0, 1].
        clips: Frames of one clip get the same light, contrast and blur.
    """

    def uniform(low: float, high: float) -> Tensor:
        values = torch.rand(clips, 1, device=frames.device, generator=generator) * (high - low) + low
        return values.expand(-1, len(frames) // clips).reshape(-1, 1, 1, 1)

    blurred = F.avg_pool2d(F.pad(frames, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    frames = frames + (blurred - frames) * uniform(-0.2, 0.4)
    frames = (frames - 0.5) * uniform(0.85, 1.1) + 0.5 + uniform(-0.06, 0.06)
    noise = torch.randn(frames.shape, device=frames.device, generator=generator)
    return (frames + noise * uniform(0.0, 0.02)).clamp(0, 1)
