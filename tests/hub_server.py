"""A server that speaks as much of the Hugging Face hub's API as huggingface_hub needs to download a model."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

COMMIT = "c0ffee" + "0" * 34
TOKEN = "hf_granted"
LARGE = ".safetensors"  # these are kept by the SHA-256 of their content, as git LFS does


@dataclass
class Hub:
    """What the server has and what it heard.

    Attributes:
        models: Repository to the folder that it holds, all at the commit `COMMIT`, branch `main` and tag `v1`.
        gated: Repository to the status that its files are refused with, unless the token is `TOKEN`.
        stores_elsewhere: Large files come from another host name, as the real one's do.
        cut_after: Bytes after which the connection breaks, for each of the next requests for a large file.
        ignores_ranges: Sends whole files whatever is asked for.
        heard: (method, path, range) of every request.
        tokens: (path, token) of every request that had one.
    """

    models: dict[str, Path] = field(default_factory=dict)
    gated: dict[str, int] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    stores_elsewhere: bool = False
    ignores_ranges: bool = False
    heard: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""

    def files(self) -> list[Path]:
        """Every file of every model."""
        return [file for folder in self.models.values() for file in folder.rglob("*") if file.is_file()]

    def fetched(self, suffix: str) -> list[str | None]:
        """The ranges that were asked for of the files with a suffix, None for a whole file."""
        return [asked for method, path, asked in self.heard if method == "GET" and path.endswith(suffix)]


def _handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            hub.heard.append((self.command, path, self.headers["Range"]))
            token = self.headers["Authorization"]
            if token:
                hub.tokens.append((path, token))
            if path.startswith("/stored/"):
                return self.answer_file(next(file for file in hub.files() if oid(file) == path.split("/")[2]))
            parts = path.removeprefix("/api/models").strip("/").split("/")
            repository, rest = "/".join(parts[:2]), parts[2:]
            is_granted = token == f"Bearer {TOKEN}"
            if repository in hub.gated and not is_granted and (self.command == "HEAD" or rest[:1] == ["resolve"]):
                return self.refuse(hub.gated[repository], "GatedRepo")
            if repository not in hub.models:
                # Without a token the real one tells nobody which private repositories there are.
                return self.refuse(401, "RepoNotFound")
            folder = hub.models[repository]
            if rest and rest[1] not in (COMMIT, "main", "v1"):
                return self.refuse(404, "RevisionNotFound")
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            if path.startswith("/api/"):
                if rest[:1] == ["tree"]:
                    return self.answer_json([described(folder, file) for file in files])
                names = [{"rfilename": str(file.relative_to(folder))} for file in files]
                return self.answer_json({"id": repository, "sha": COMMIT, "siblings": names})
            file = folder.joinpath(*rest[2:])
            if file not in files:
                return self.refuse(404, "EntryNotFound")
            if hub.stores_elsewhere and file.suffix == LARGE:
                return self.redirect(file)
            self.answer_file(file)

        do_HEAD = do_GET

        def redirect(self, file: Path) -> None:
            elsewhere = hub.address.replace("127.0.0.1", "localhost")
            self.send_response(302)
            for name, value in self.headers_of(file).items():
                self.send_header(name, value)
            self.send_header("Location", f"{elsewhere}/stored/{oid(file)}/{file.name}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def headers_of(self, file: Path) -> dict[str, str]:
            headers = {"ETag": f'"{oid(file)}"', "X-Repo-Commit": COMMIT}
            if file.suffix == LARGE:
                headers |= {"X-Linked-Etag": f'"{oid(file)}"', "X-Linked-Size": str(file.stat().st_size)}
            return headers

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def answer_json(self, content: object) -> None:
            self.answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def answer_file(self, file: Path) -> None:
            data = file.read_bytes()
            headers = self.headers_of(file)
            asked = self.headers["Range"]
            if not asked or hub.ignores_ranges or self.command == "HEAD":
                return self.answer(200, data, headers, may_be_cut=file.suffix == LARGE)
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.answer(206, data[start:], headers, may_be_cut=file.suffix == LARGE)

        def answer(self, status: int, data: bytes, headers: dict[str, str], may_be_cut: bool = False) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if may_be_cut and hub.cut_after:
                self.wfile.write(data[: hub.cut_after.pop(0)])
                self.close_connection = True
                return
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    return Handler


def oid(file: Path) -> str:
    """What the hub names a file's content by."""
    data = file.read_bytes()
    if file.suffix == LARGE:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def described(folder: Path, file: Path) -> dict[str, object]:
    """An entry of a repository's tree."""
    size = file.stat().st_size
    entry = {"type": "file", "path": str(file.relative_to(folder)), "size": size, "oid": oid(file)}
    if file.suffix == LARGE:
        entry |= {"oid": "0" * 40, "lfs": {"oid": oid(file), "size": size, "pointerSize": 130}}
    return entry


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at `hub.address` as long as the context lasts."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
