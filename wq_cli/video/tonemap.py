"""HDR to SDR: PQ and HLG pictures brought to the range of an ordinary screen."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

_PQ, _HLG = 16, 18  # AVCOL_TRC_SMPTE2084, AVCOL_TRC_ARIB_STD_B67
HDR_TRANSFERS = (_PQ, _HLG)
_WHITE_NITS = 203.0  # diffuse white, ITU-R BT.2408
_PEAK_NITS = 1000.0
_KNEE = 0.6  # share of diffuse white up to which nothing changes
_GAMMA = 2.4  # of the SDR screen, ITU-R BT.1886
_LEVELS = 1 << 14
# Linear BT.2020 to linear BT.709, ITU-R BT.2087.
_BT2020_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)
_BT2020_LUMINANCE = np.array([0.2627, 0.6780, 0.0593], np.float32)


def hdr_to_sdr(picture: npt.NDArray[np.uint16], transfer: int) -> npt.NDArray[np.uint8]:
    """Tone-maps BT.2020 R'G'B' of a PQ or HLG picture.

    Args:
        picture: [H, W, 3], full range over 16 bits.
        transfer: FFmpeg's number of the transfer curve, one of `HDR_TRANSFERS`.

    Returns:
        [H, W, 3] uint8, BT.709, as an SDR screen shows it.

    Source: curves of ITU-R BT.2100; Reinhard's extended operator (2002, eq 4) above a knee, on the brightest channel
        so that hues stay.
    """
    light = _light(transfer)[picture]
    if transfer == _HLG:
        light *= _PEAK_NITS / _WHITE_NITS * (light @ _BT2020_LUMINANCE)[..., None] ** 0.2
    brightest = np.maximum(light.max(axis=2, keepdims=True), _KNEE)
    over = (brightest - _KNEE) / (1 - _KNEE)
    top = (_PEAK_NITS / _WHITE_NITS - _KNEE) / (1 - _KNEE)
    mapped = _KNEE + (1 - _KNEE) * over * (1 + over / top**2) / (1 + over)
    light *= mapped / brightest
    light = np.clip(light @ _BT2020_TO_BT709.T, 0, 1)
    return np.take(_screen_codes(), (light * (_LEVELS - 1) + 0.5).astype(np.uint16))


@cache
def _light(transfer: int) -> npt.NDArray[np.float32]:
    """Light for each 16-bit code, [65536] float32: on screen for PQ, 1 being diffuse white; of the scene for HLG."""
    code = np.linspace(0, 1, 1 << 16)
    if transfer == _PQ:
        m1, m2, c1, c2, c3 = 2610 / 16384, 2523 / 4096 * 128, 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
        root = code ** (1 / m2)
        light = 10_000 / _WHITE_NITS * (np.maximum(root - c1, 0) / (c2 - c3 * root)) ** (1 / m1)
    else:
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        light = np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12)
    return light.astype(np.float32)


@cache
def _screen_codes() -> npt.NDArray[np.uint8]:
    """8-bit code for each level of light, [16384]."""
    return (np.linspace(0, 1, _LEVELS) ** (1 / _GAMMA) * 255 + 0.5).astype(np.uint8)
