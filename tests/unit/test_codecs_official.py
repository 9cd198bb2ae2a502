"""Our quantizers against what those of KIVI, KVTuner and SKVQ made of the same tensor (tests/data/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from wq_cli.blocks import TokenQuantizer, unpack_digits
from wq_kernels import pack, unpack

OFFICIAL = load_file(Path(__file__).parents[1] / "data" / "official_codecs.safetensors")
X = OFFICIAL["x"].float()
TOKENS, CHANNELS = X.shape[2:]
F32 = torch.float32


def per_token(levels: int, **how: object) -> torch.Tensor:
    """Quantized and back, metadata in float32 as theirs."""
    quantizer = TokenQuantizer(**{"group": 32, "dtype": F32, **how})  # type: ignore[arg-type]
    return quantizer.pack(X, levels=levels).read(F32)


@pytest.mark.parametrize("bits", [2, 4])
def test_kivi_values_to_the_bit(bits: int) -> None:
    block = TokenQuantizer(group=32, dtype=F32).pack(X, levels=2**bits)
    assert torch.equal(unpack_digits(block.data, 2**bits, CHANNELS), OFFICIAL[f"kivi_value_{bits}_code"])
    for ours, name in ((block.scale, "scale"), (block.minimum, "minimum")):
        assert torch.equal(ours.unflatten(-1, (2, 2)).transpose(1, 2), OFFICIAL[f"kivi_value_{bits}_{name}"])


def in_steps(stored: torch.Tensor, theirs: torch.Tensor, bits: int) -> torch.Tensor:
    """Distance in steps of the group."""
    return (stored - theirs).abs() / OFFICIAL[f"kivi_key_{bits}_scale"]


@pytest.mark.parametrize("bits", [2, 4])
def test_kivi_keys_but_for_the_rounding_of_scales(bits: int) -> None:
    """Our scales are float16: a value half way between two codes may get the other one."""
    ours = unpack(pack(X, torch.arange(TOKENS)[None], bits=bits, window=32), F32)
    code, scale = OFFICIAL[f"kivi_key_{bits}_code"], OFFICIAL[f"kivi_key_{bits}_scale"]
    distance = in_steps(ours, code * scale + OFFICIAL[f"kivi_key_{bits}_minimum"], bits)
    assert distance.max() <= 1.01
    assert (distance > 0.01).float().mean() < 0.002


@pytest.mark.parametrize("bits", [2, 4])
def test_kvtuner_is_the_integer_zero_point(bits: int) -> None:
    torch.testing.assert_close(
        per_token(2**bits, zero_point="integer"), OFFICIAL[f"kvtuner_token_{bits}"], atol=1e-5, rtol=0
    )
    ours = unpack(pack(X, torch.arange(TOKENS)[None], bits=bits, window=32, zero_point="integer"), F32)
    distance = in_steps(ours, OFFICIAL[f"kvtuner_channel_{bits}"], bits)
    assert distance.max() <= 1.1
    assert (distance > 0.1).float().mean() < 0.002


def test_skvq_clips_and_groups_to_the_bit() -> None:
    groups = OFFICIAL["skvq_groups"]
    assert torch.equal(per_token(4, clip=0.92), OFFICIAL["skvq_plain_2"])
    assert torch.equal(per_token(4, clip=0.92, groups=groups), OFFICIAL["skvq_reordered_2"])
    assert torch.equal(per_token(3, clip=0.96, groups=groups), OFFICIAL["skvq_reordered_1.5"])


def test_skvq_float8_codes_of_the_rounded_pair_are_nearer() -> None:
    """The released code rounds scale and minimum after it made the codes, we before; the pairs are the same."""
    how = {"clip": 0.92, "groups": OFFICIAL["skvq_groups"]}
    exact = TokenQuantizer(dtype=F32, **how).pack(X, levels=4)  # type: ignore[arg-type]
    stored = TokenQuantizer(dtype=torch.float8_e4m3fn, **how).pack(X, levels=4)  # type: ignore[arg-type]
    assert torch.equal(stored.scale.float(), exact.scale.to(torch.float8_e4m3fn).float())
    assert torch.equal(stored.minimum.float(), exact.minimum.to(torch.float8_e4m3fn).float())
    assert (stored.read(F32) - X).norm() < (OFFICIAL["skvq_fp8_2"] - X).norm()
