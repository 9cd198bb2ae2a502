"""Profiles: what is accepted, what is refused and in which words, where they are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from wq_cli import profile
from wq_cli.errors import ProfileError, WqError

MINIMAL = "name: mine\ndescription: for tests\nmodel: ./weights\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WQ_CONFIG_HOME", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    return tmp_path


def write(home: Path, text: str, name: str = "mine") -> Path:
    path = home / "profiles" / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_packaged_profiles_are_valid_and_named_as_their_files() -> None:
    files = sorted(profile.packaged_folder().glob("*.yaml"))
    assert {path.stem for path in files} >= {"demo", "llava-onevision-0.5b", "llava-onevision-7b"}
    for path in files:
        assert profile.problems(profile.read(path)) == []
        assert profile.load(path.stem).name == path.stem


@pytest.mark.parametrize(
    ("name", "kv_bytes_per_token"),
    # methods.md: 57,344 bytes of 16-bit keys and values per token for the 7B; 12,288 for the 0.5B.
    [("llava-onevision-7b", 57_344), ("llava-onevision-0.5b", 12_288)],
)
def test_architectures_have_the_published_cache_size(name: str, kv_bytes_per_token: int) -> None:
    architecture = profile.load(name).architecture
    assert architecture is not None
    text = architecture["text_config"]
    head_dim = text["hidden_size"] // text["num_attention_heads"]
    assert 2 * 2 * text["num_hidden_layers"] * text["num_key_value_heads"] * head_dim == kv_bytes_per_token
    vision = architecture["vision_config"]
    assert (vision["image_size"] // vision["patch_size"]) ** 2 == 27 * 27


def test_a_users_profile_comes_before_a_packaged_one(home: Path) -> None:
    assert profile.load("demo").is_packaged
    write(home, "name: demo\ndescription: mine\nmodel: other\nwindow: 64\n", "demo")
    mine = profile.load("demo")
    assert (mine.model, mine.is_packaged, mine.option_defaults()) == ("other", False, {"window": 64})


def test_use_remembers_the_default(home: Path) -> None:
    assert profile.default_name() == "demo"
    profile.use("llava-onevision-7b")
    assert profile.load().name == "llava-onevision-7b"


def test_a_folder_for_settings_that_cannot_be(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("WQ_CONFIG_HOME", str(home / "file"))
    assert profile.default_name() == "demo"
    with pytest.raises(WqError, match="cannot make the folder"):
        profile.use("demo")


def test_what_is_remembered_replaces_what_was_and_leaves_the_rest(home: Path) -> None:
    path = write(home, MINIMAL + "sensitivity:\n- 0.1\n- 0.2\n# of the frames\nframes: 8\n")
    profile.remember(profile.load("mine"), "sensitivity", (0.25, 1.0))
    assert path.read_text() == MINIMAL + "# of the frames\nframes: 8\nsensitivity: [0.25, 1.0]\n"
    profile.remember(profile.load("demo"), "sensitivity", (0.5,))
    assert profile.load("demo").sensitivity == (0.5,)
    assert profile.load("demo").path == home / "profiles" / "demo.yaml"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MINIMAL.rstrip(), f"{MINIMAL}revision: v1\n"),
        (MINIMAL + "revision: v0  # old\n# kept\nframes: 8\n", f"{MINIMAL}# kept\nframes: 8\nrevision: v1\n"),
        (MINIMAL.replace("\n", "\r\n"), f"{MINIMAL}revision: v1\n".replace("\n", "\r\n")),
        (MINIMAL + "revision:\r\n  v0\r\nframes: 8", f"{MINIMAL}frames: 8\nrevision: v1\n".replace("\n", "\r\n")),
    ],
)
def test_a_text_is_remembered_however_the_file_ends_its_lines(before: str, after: str, home: Path) -> None:
    path = home / "profiles" / "mine.yaml"
    path.write_bytes(before.encode())
    profile.remember(profile.load("mine"), "revision", "v1")
    assert path.read_bytes() == after.encode()


@pytest.mark.parametrize(("key", "value"), [("sensitivity", (1e-05, 1.0)), ("revision", "0" * 40), ("revision", "1e5")])
def test_what_is_remembered_is_read_again(key: str, value: tuple[float, ...] | str, home: Path) -> None:
    write(home, MINIMAL)
    profile.remember(profile.load("mine"), key, value)
    assert getattr(profile.load("mine"), key) == value


@pytest.mark.parametrize(
    "text",
    [
        "{name: mine, description: for tests, model: ./weights}\n",
        MINIMAL + "...\n",
        MINIMAL + "sensitivity:\n# measured\n- 0.1\n",
    ],
)
def test_a_file_that_a_line_would_break_stays_as_it_is(text: str, home: Path) -> None:
    path = write(home, text)
    with pytest.raises(WqError, match="`sensitivity` cannot be added to") as caught:
        profile.remember(profile.load("mine"), "sensitivity", (0.5,))
    assert caught.value.hint == "write it: `sensitivity: [0.5]`"
    assert path.read_text() == text


def test_use_refuses_what_cannot_be_loaded(home: Path) -> None:
    write(home, "name: mine\n")
    with pytest.raises(ProfileError):
        profile.use("mine")
    assert profile.default_name() == "demo"


def test_use_remembers_a_file_wherever_it_is_called_from(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "own.yaml").write_text(MINIMAL)
    monkeypatch.chdir(folder)
    profile.use("./own.yaml")
    monkeypatch.chdir(home)
    assert profile.load().path == folder / "own.yaml"


def test_unknown_names_list_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ProfileError) as caught:
        profile.load("llava-onevison-7b")
    assert "`llava-onevison-7b`" in caught.value.message
    assert caught.value.hint is not None
    assert "did you mean `llava-onevision-7b`" in caught.value.hint
    assert "demo" in caught.value.hint


def test_a_path_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(MINIMAL + "sensitivity: [0.5, 1, 0]\n")
    assert profile.load(str(path)).sensitivity == (0.5, 1, 0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("widow: 32", "unknown key `widow`, did you mean `window`?"),
        ("zzz: 1", "unknown key `zzz`"),
        ("window: 0", "`window` must be a whole number from 1, not `0`"),
        ("window: 32.0", "`window` must be a whole number from 1"),
        ("window: true", "`window` must be a whole number from 1"),
        ("frames: many", "`frames` must be a whole number from 1, not `many`"),
        ("alpha: .inf", "`alpha` must be a positive number"),
        ("alpha: .nan", "`alpha` must be a positive number"),
        ("alpha: -1", "`alpha` must be a positive number"),
        ("kv_dtype: float8", "`kv_dtype` must be one of auto, float32, float16, bfloat16"),
        ("dtype: [auto]", "`dtype` must be one of"),
        ("sensitivity: 0.9", "`sensitivity` must be a list of numbers from 0 to 1"),
        ("sensitivity: [0.9, 1.2]", "`sensitivity` must be a list of numbers from 0 to 1"),
        ("sensitivity: []", "`sensitivity` must be a list"),
        ("architecture: {text_config: {}}", "`architecture` must be a mapping with `text_config`, `vis"),
        ("revision: 12", "`revision` must be a text"),
        ("revision: no", "`revision` must be a text"),
        ("notes: ''", "`notes` must be a text"),
        ("1: 2", "unknown key `1`"),
    ],
)
def test_what_is_wrong_is_named(line: str, said: str, home: Path) -> None:
    write(home, MINIMAL + line + "\n")
    with pytest.raises(ProfileError) as caught:
        profile.load("mine")
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_every_problem_is_listed() -> None:
    assert len(profile.problems({"name": "", "widow": 1})) == 4  # two keys missing, an empty name, an unknown key


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: 1\nb: [1", "is not YAML (line 2)"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"", "holds no `key: value` lines"),
        (b"- a\n- b\n", "holds no `key: value` lines"),
        (b"a: !!python/object/apply:os.system ['true']\n", "is not YAML (line 1)"),
        (b"[" * 5000, "is not YAML"),
    ],
)
def test_files_that_hold_no_profile(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ProfileError) as caught:
        profile.load(str(path))
    assert said in caught.value.message


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read profile"):
        profile.load(str(tmp_path / "none.yaml"))


def test_explain_covers_every_key_that_is_set() -> None:
    found = profile.load("llava-onevision-0.5b")
    assert {key for key, _, _ in profile.explain(found)} >= set(profile.read(found.path))
