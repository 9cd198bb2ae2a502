"""Files of what was measured beforehand, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wq_cli import offline, policies
from wq_cli.config import Quantization
from wq_cli.errors import WqError
from wq_cli.profile import Profile

LAYERS = 2


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setenv("WQ_CONFIG_HOME", str(tmp_path))
    return Profile(tmp_path / "mine.yaml", "mine", "a profile", "demo")


def test_what_was_written_is_read(profile: Profile) -> None:
    for numbers in ({"a": [0.5, 2.0]}, {"a": [[1.0, 2.0], [3.0, 4.0]], "b": [1.0, 0.0]}):
        offline.write(profile, "kvmix", numbers)
        assert offline.read(profile, "kvmix", LAYERS) == numbers


def test_what_was_not_measured_is_missed_by_who_needs_it_alone(profile: Profile) -> None:
    assert offline.find(profile, "focus", LAYERS) is None and offline.find(None, "focus", LAYERS) is None
    with pytest.raises(WqError, match="`focus` knows nothing of the model of profile `mine`"):
        offline.read(profile, "focus", LAYERS)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a": [1]}',
        '{"a": ["x", "y"]}',
        '{"a": [{}, {}]}',
        '{"a": [1, NaN]}',
        '{"a": [1, null]}',
        '{"a": [1, Infinity]}',
        f'{{"a": [1, {10**400}]}}',
        '{"a": [[1], [1, 2]]}',
    ],
)
def test_a_damaged_file_is_one_line(profile: Profile, text: str) -> None:
    path = offline.write(profile, "kvmix", {})
    path.write_text(text)
    with pytest.raises(WqError, match=r"^(cannot read )?`.*mine.kvmix.json`") as caught:
        offline.read(profile, "kvmix", LAYERS)
    assert caught.value.hint == "measure it: `wq calibrate --policy kvmix`"


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("skvq", ("key_low", "key_high", "value_low", "value_high")),
        ("smoothquant", ("key_max", "value_low", "value_high", "query_max")),
    ],
)
def test_channels_must_be_equally_many(policy: str, names: tuple[str, ...]) -> None:
    numbers = {name: [[1.0] * 4] * LAYERS for name in names}
    told = policies.create(Quantization(policy=f"{policy}:calibrated=on")).told
    told(numbers)
    with pytest.raises(WqError, match=f"what was measured for `{policy}` is incomplete"):
        told(json.loads(json.dumps(numbers)) | {names[1]: [[1.0] * 3] * LAYERS})
