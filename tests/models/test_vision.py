"""Our way from pixels to visual tokens against transformers' own: pooling, chosen layers, preprocessing, batches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import functional as tv
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    InternVLConfig,
    LlavaConfig,
    LlavaNextConfig,
    LlavaNextVideoConfig,
    LlavaOnevisionConfig,
    LlavaOnevisionModel,
    LlavaOnevisionVideoProcessor,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3VLConfig,
    SiglipVisionConfig,
    SiglipVisionModel,
    SmolVLMConfig,
)

from wq_cli.models import frames as vision
from wq_cli.models import qwen_vl
from wq_cli.models.pooling import halve, halving_matrix


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [1, 2, 3, 8, 9, 13, 27])
def test_pooling_is_transformers_own(side: int, dtype: torch.dtype) -> None:
    features = torch.randn(3, side * side, 20, dtype=dtype, generator=torch.Generator().manual_seed(side))
    config = SimpleNamespace(vision_config=SimpleNamespace(image_size=14 * side, patch_size=14))
    expected = LlavaOnevisionModel.apply_pooling(SimpleNamespace(config=config), features)
    assert halve(features, side, side).shape == expected.shape
    # A place between two tokens is a number up to `side`, so that weights are right to its rounding.
    assert torch.allclose(halve(features, side, side), expected, rtol=0, atol=4 * side * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("height", "width"), [(27, 14), (5, 8), (1, 6), (7, 3)])
def test_pooling_of_unequal_sides(height: int, width: int) -> None:
    features = torch.randn(2, height * width, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    grid = features.view(2, height, width, 7).permute(0, 3, 1, 2)
    expected = interpolate(grid, size=(-(-height // 2), -(-width // 2)), mode="bilinear").flatten(2).mT
    assert torch.allclose(halve(features, height, width), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pooling_in_half_precision_is_off_by_its_rounding(dtype: torch.dtype) -> None:
    """Both ways against float64: ours rounds weights and rows as well, and may be off by three roundings more."""
    features = torch.randn(2, 27 * 27, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = halve(features.double(), 27, 27)
    largest = features.double().abs().max()
    assert (halve(features, 27, 27).double() - exact).abs().max() <= 4 * torch.finfo(dtype).eps / 2 * largest


def test_pooling_weights_are_made_once() -> None:
    assert halving_matrix(27, torch.float32, torch.device("cpu")) is halving_matrix(
        27, torch.float32, torch.device("cpu")
    )


@pytest.mark.parametrize("chosen", [-1, -2, 0, 1, [-2, 1], [3, -1]])
@pytest.mark.parametrize("kind", [SiglipVisionModel, CLIPVisionModel])
def test_chosen_layers_are_those_of_all_hidden_states(kind: type, chosen: int | list[int]) -> None:
    config = {SiglipVisionModel: SiglipVisionConfig, CLIPVisionModel: CLIPVisionConfig}[kind](
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=7
    )
    torch.manual_seed(0)
    tower = kind(config).eval()
    pixels = torch.randn(2, 3, 28, 28)
    wanted = [chosen] if isinstance(chosen, int) else chosen
    with torch.inference_mode():
        states = tower(pixels, output_hidden_states=True).hidden_states
        features = vision.tower_features(
            SimpleNamespace(
                config=SimpleNamespace(vision_feature_layer=chosen, vision_feature_select_strategy="full"),
                model=SimpleNamespace(vision_tower=tower),
            ),
            pixels,
        )
    assert torch.equal(features, torch.cat([states[i] for i in wanted], dim=-1))
    hooked = [len(module._forward_hooks) for module in tower.modules()]
    with torch.inference_mode():
        vision._hidden_states(tower, pixels, wanted)
    assert hooked == [len(module._forward_hooks) for module in tower.modules()]


def processor(side: int = 64) -> LlavaOnevisionVideoProcessor:
    return LlavaOnevisionVideoProcessor(size={"height": side, "width": side})


def noise(*shape: int) -> np.ndarray:
    """Frames with the hardest edges there are."""
    return np.random.default_rng(0).choice(np.array([0, 255], dtype=np.uint8), shape)


SHAPES = [(3, 40, 52, 3), (2, 120, 200, 3), (2, 64, 64, 3), (2, 3, 90, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_resize_in_width_first_changes_nothing(shape: tuple[int, ...]) -> None:
    frames = noise(*shape)
    expected = processor()(
        videos=[frames], do_sample_frames=False, input_data_format="channels_last", return_tensors="pt"
    )["pixel_values_videos"]
    narrowed = vision.resized_in_width(processor(), torch.from_numpy(frames).permute(0, 3, 1, 2))
    assert narrowed.dtype == torch.uint8 and narrowed.shape == (shape[0], 3, shape[1], 64)
    made = processor()(videos=[narrowed], do_sample_frames=False, return_tensors="pt")["pixel_values_videos"]
    assert torch.equal(made, expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_resizes_that_round_once_each_are_near_when_width_goes_first(shape: tuple[int, ...]) -> None:
    """What CUDA does, in float32 on the CPU: far from 8-bit arithmetic in one call, a rounding away in two."""
    frames = torch.from_numpy(noise(*shape)).permute(0, 3, 1, 2)

    def rounded_once(video: torch.Tensor, height: int, width: int) -> torch.Tensor:
        resized = tv.resize(video.float(), [height, width], interpolation=tv.InterpolationMode.BICUBIC, antialias=True)
        return resized.clamp(0, 255).round()

    expected = tv.resize(frames, [64, 64], interpolation=tv.InterpolationMode.BICUBIC, antialias=True).float()
    two_calls = rounded_once(rounded_once(frames, shape[1], 64), 64, 64)
    assert (two_calls - expected).abs().max() <= 2
    assert (two_calls != expected).float().mean() < 0.02
    if shape == SHAPES[0]:
        assert (rounded_once(frames, 64, 64) - expected).abs().max() > 10


def test_which_processors_have_a_fixed_size() -> None:
    assert vision.has_fixed_size(processor())
    assert not vision.has_fixed_size(LlavaOnevisionVideoProcessor(size={"shortest_edge": 64}))
    assert not vision.has_fixed_size(
        LlavaOnevisionVideoProcessor(
            size={"height": 64, "width": 64}, do_center_crop=True, crop_size={"height": 32, "width": 32}
        )
    )


ONEVISION_7B = {"tokens": 729, "hidden": 1152, "widest": 4304, "layers": 26, "itemsize": 2}


@given(st.integers(0, 2**38), st.sampled_from([2, 4]))
def test_frames_of_a_batch_fit(free_bytes: int, itemsize: int) -> None:
    count = vision.frames_per_batch(**ONEVISION_7B | {"itemsize": itemsize}, free_bytes=free_bytes)
    of_frame = 729 * (28 * 1152 + 3 * 4304) * itemsize
    assert 1 <= count <= vision.MAX_FRAMES_PER_BATCH
    assert count == 1 or count * of_frame <= free_bytes / 2
    assert count == vision.MAX_FRAMES_PER_BATCH or (count + 1) * of_frame > free_bytes / 2


def test_frames_of_a_batch_by_hand() -> None:
    # 729 x (28 x 1152 + 3 x 4304) x 2 bytes are 65.9 MB a frame.
    assert vision.frames_per_batch(**ONEVISION_7B, free_bytes=2 * 10 * 66_000_000) == 10
    assert vision.frames_per_batch(**ONEVISION_7B, free_bytes=100 * 2**30) == vision.MAX_FRAMES_PER_BATCH
    assert vision.frames_per_batch(**ONEVISION_7B, free_bytes=0) == 1


@pytest.mark.parametrize(
    ("config", "patches"),
    [
        (LlavaOnevisionConfig, 27**2),
        (LlavaConfig, 24**2),
        (LlavaNextConfig, 24**2),
        (LlavaNextVideoConfig, 24**2),
        (InternVLConfig, 32**2),
        (SmolVLMConfig, 7**2),
    ],
)
def test_frames_of_a_batch_of_every_family(monkeypatch: pytest.MonkeyPatch, config: type, patches: int) -> None:
    """On a GPU whose free memory is that of 5 frames, from each family's own config."""
    made = config()
    tower, width = made.vision_config, made.get_text_config().hidden_size
    of_token = (2 + tower.num_hidden_layers) * tower.hidden_size + 3 * max(tower.intermediate_size, width)
    monkeypatch.setattr(vision, "free_bytes", lambda device: 2 * 5 * patches * of_token * 2)
    adapter = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, model=SimpleNamespace(config=made))
    assert vision.FrameModel.frames_at_once(adapter) == 5


@pytest.mark.parametrize(
    ("config", "hidden", "widest"),
    [(Qwen2VLConfig, 1280, 5120), (Qwen2_5_VLConfig, 1280, 3420), (Qwen3VLConfig, 1152, 4304)],
)
def test_pairs_of_a_batch_of_every_qwen(
    monkeypatch: pytest.MonkeyPatch, config: type, hidden: int, widest: int
) -> None:
    """On a GPU whose free memory is that of 5 pairs of 600 patches, for the published towers."""
    tower = {"hidden_size": hidden, "intermediate_size": widest} if config is Qwen2_5_VLConfig else {}
    made = config(vision_config=tower)
    of_token = (2 + made.vision_config.depth) * hidden + 3 * widest
    monkeypatch.setattr(qwen_vl, "free_bytes", lambda device: 2 * 5 * 600 * of_token * 2)
    adapter = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, model=SimpleNamespace(config=made))
    assert qwen_vl.Qwen2VL.pairs_at_once(adapter, 600) == 5
