"""Models of the Hugging Face hub: found on this computer or downloaded, and each way in which that fails in one line.

Only safetensors weights, the config and the processor's files are fetched, never code and never pickles. A download
that was cut goes on where it stopped, in the next run too.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from wq_cli.errors import ModelError, first_line
from wq_cli.models import family_of

if TYPE_CHECKING:
    from huggingface_hub.file_download import HfFileMetadata

# Config and processor: all that `from_pretrained` reads beside the weights. Subfolders hold other formats.
_SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_SUBFOLDERS = "*/*"
_SHA256_DIGITS = 64


class Progress(Protocol):
    """Hears how far a download is."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A stage begins: `download` with a total in bytes, then `load`."""

    def advance(self, steps: int = 1) -> None:
        """So many bytes more are here."""


def is_repository(source: str) -> bool:
    """Whether a model is named as the hub names it, `owner/name`, and no folder is meant."""
    return (
        not Path(source).expanduser().exists() and not source.startswith((".", "~", os.sep)) and source.count("/") == 1
    )


def weight_files(folder: Path) -> list[str]:
    """Names of a checkpoint's safetensors files, those that are not there too.

    Raises:
        ModelError: Its index cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"`{index}` does not say where the weights are", "remove its folder and pull again") from error


def find(repository: str, revision: str | None = None) -> Path | None:
    """The folder of a model that was pulled, without a look at the network; None where a part of it is missing."""
    from huggingface_hub import errors, snapshot_download

    try:
        found = snapshot_download(
            repository,
            revision=revision,
            local_files_only=True,
            allow_patterns=list(_SMALL_FILES),
            ignore_patterns=_SUBFOLDERS,
        )
    except (errors.LocalEntryNotFoundError, errors.HFValidationError):
        return None
    folder = Path(found)
    is_whole = (folder / "config.json").is_file() and all((folder / name).is_file() for name in weight_files(folder))
    return folder if is_whole else None


def pull(repository: str, revision: str | None, progress: Progress) -> Path:
    """Bring a model into the hub's cache on this computer; what is there already is not fetched again.

    Args:
        repository: `owner/name`.
        revision: Commit, tag or branch; None for the newest of the main branch.
        progress: Told of the bytes that came.

    Returns:
        The folder that holds it.

    Raises:
        ModelError: No such model or revision, no permission, no network, no safetensors, a family that is not
            supported, or a full disk.
    """
    from huggingface_hub import hf_hub_download, hf_hub_url, snapshot_download

    with _one_line_errors(repository, revision):
        folder = Path(
            snapshot_download(
                repository,
                revision=revision,
                allow_patterns=list(_SMALL_FILES),
                ignore_patterns=_SUBFOLDERS,
            )
        )
        _check_family(repository, folder)
        commit, blobs = folder.name, folder.parents[1] / "blobs"
        missing = [name for name in weight_files(folder) if not (folder / name).is_file()]
        found = {name: _metadata(hf_hub_url(repository, name, revision=commit)) for name in missing}
        _check_room(repository, blobs, found)
        progress.stage("download", sum(file.size or 0 for file in found.values()))
        for name, file in found.items():
            _fetch(file, blobs, progress)
            hf_hub_download(repository, name, revision=commit)  # links what `_fetch` brought into the snapshot
    return folder


def local_folder(repository: str, revision: str | None, offline: bool, progress: Progress) -> Path:
    """The folder of a model, pulled before or now.

    Raises:
        ModelError: It is not on this computer and cannot or must not be downloaded.
    """
    folder = find(repository, revision)
    if folder is None:
        if offline:
            raise _not_here(repository)
        folder = pull(repository, revision, progress)
        progress.stage("load")
    return folder


def _metadata(url: str) -> HfFileMetadata:
    from huggingface_hub import get_hf_file_metadata

    return get_hf_file_metadata(url, retry_on_errors=True)


def _check_family(repository: str, folder: Path) -> None:
    """Refuse what wq could not run before its gigabytes are fetched.

    Raises:
        ModelError: No config, or one of another family.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = config["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"`{repository}` has no `config.json` of transformers", "take a checkpoint for it") from error
    family_of(model_type)


def _check_room(repository: str, blobs: Path, found: dict[str, HfFileMetadata]) -> None:
    needed = sum((file.size or 0) - _size_of(_part(blobs, file)) for file in found.values())
    free = shutil.disk_usage(blobs).free
    if needed > free:
        gibibytes = f"{needed / 2**30:.1f} GiB more, {free / 2**30:.1f} GiB are free"
        raise ModelError(f"`{repository}` needs {gibibytes} in `{blobs.parents[1]}`", "set HF_HOME to a larger disk")


def _part(blobs: Path, file: HfFileMetadata) -> Path:
    return blobs / f"{file.etag}.incomplete"


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _fetch(file: HfFileMetadata, blobs: Path, progress: Progress) -> None:
    """One weights file into the cache. huggingface_hub itself drops what it has when a run ends early.

    Raises:
        ModelError: The pieces do not make the file that the hub announced.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    blob, part = blobs / str(file.etag), _part(blobs, file)
    # A redirect leads to another host, which the token is not for.
    is_hub = urlsplit(file.location).netloc == urlsplit(constants.ENDPOINT).netloc
    locks = Path(constants.HF_HUB_CACHE) / ".locks" / blobs.parent.name
    locks.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(locks / f"{file.etag}.lock"):
        if blob.exists():
            progress.advance(file.size or 0)
            return
        had = _size_of(part)
        with part.open("ab") as output:
            http_get(
                file.location,
                output,
                resume_size=had,
                headers=build_hf_headers(token=None if is_hub else False),
                expected_size=file.size,
                tqdm_class=_counting_bar(progress),
            )
        if had and len(str(file.etag)) == _SHA256_DIGITS and _sha256(part) != file.etag:
            part.unlink()
            raise ModelError("a file that was downloaded in pieces is damaged", "run `wq pull` again")
        os.replace(part, blob)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _counting_bar(progress: Progress) -> Any:
    """What `http_get` takes for a tqdm bar: it hands on the bytes."""

    class Bar:
        def __init__(self, *ignored: Any, initial: int = 0, **more: Any) -> None:
            self.update(initial)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *ignored: Any) -> None: ...

        def update(self, count: int) -> None:
            progress.advance(count)

    return Bar


@contextmanager
def _one_line_errors(repository: str, revision: str | None) -> Iterator[None]:
    """What huggingface_hub raises in our words, by the first cause that says what went wrong."""
    from huggingface_hub import errors
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    # Each of its retries would be a warning; what went wrong is said once.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        yield
    except (OSError, errors.HTTPError, errors.OfflineModeIsEnabled, ValueError) as error:
        raise _explained(error, repository, revision) from error


def _explained(error: Exception, repository: str, revision: str | None) -> ModelError:
    from huggingface_hub import errors

    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    for cause in causes:
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(cause, errors.GatedRepoError):
            page = f"https://huggingface.co/{repository}"
            hint = f"ask for it at {page}" + (", then `hf auth login`" if status == 401 else " with your account")
            return ModelError(f"`{repository}` is given only to those who were granted access", hint)
        if isinstance(cause, errors.RevisionNotFoundError):
            return ModelError(f"`{repository}` has no revision `{revision}`", "give a commit, a tag or a branch of it")
        if isinstance(cause, errors.RepositoryNotFoundError | errors.HFValidationError):
            return ModelError(f"there is no model `{repository}` on the hub", _spelling(repository))
        if isinstance(cause, errors.RemoteEntryNotFoundError):
            return ModelError(f"`{repository}` has no safetensors weights", "wq reads no other kind")
        if status == 401:
            return ModelError("the hub does not accept your token", "`hf auth login` sets another one")
        if status is not None:
            return ModelError(f"the hub refuses `{repository}` with status {status}", "try again later")
    if any(isinstance(cause, errors.HTTPError | errors.OfflineModeIsEnabled | ConnectionError) for cause in causes):
        return _not_here(repository)
    reason = first_line(error)
    return ModelError(f"`{repository}` cannot be downloaded: {reason}", "what has come is kept, run `wq pull` again")


def _not_here(repository: str) -> ModelError:
    hint = "check the network, and whether `--offline` or HF_HUB_OFFLINE is set"
    return ModelError(f"`{repository}` is not on this computer and the hub cannot be reached", hint)


def _spelling(repository: str) -> str:
    """The nearest repository that a profile names, and what else it may be."""
    from wq_cli import profile

    known = [str(profile.read(path).get("model")) for path in sorted(profile.packaged_folder().glob("*.yaml"))]
    close = difflib.get_close_matches(repository, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else "check the spelling"
    return f"{hint} (a private one needs `hf auth login`)"
