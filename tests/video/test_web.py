"""A29: web addresses, against a server on this machine that answers well, badly or not at all."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from small_videos import error_of, make, numbers

from wq_cli.config import Limits, Sampling
from wq_cli.video import read

FIVE = Sampling(frames=5)
REDIRECTS = {"moved": "/video/a.mp4", "loop": "/loop/a.mp4", "disk": "file:///etc/passwd", "ftp": "ftp://127.0.0.1/a"}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the first part of the path."""

    video: bytes = b""

    def do_GET(self) -> None:
        kind = self.path.strip("/").partition("/")[0]
        if kind.isdecimal():
            self.send_error(int(kind))
            return
        if kind in REDIRECTS:
            self.send_response(302)
            self.send_header("Location", REDIRECTS[kind])
            self.end_headers()
            return
        if kind == "garbage":
            self.wfile.write(b"\xff\xfe\x1b[31m\r\n\r\n")
            return
        if kind == "chunks":
            self.protocol_version = "HTTP/1.1"
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"1000\r\nbroken off")
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8" if kind == "page" else "application/octet-stream")
        self.send_header("Content-Length", str(len(self.video)))
        self.end_headers()
        self.wfile.write(self.video[:1000] if kind in ("stall", "cut") else self.video)
        self.wfile.flush()
        if kind == "stall":
            time.sleep(1)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    Handler.video = make(tmp_path_factory.mktemp("web") / "a.mp4", n=10).read_bytes()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("no_proxy", "*")
            yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()


def test_a29_web_address(server: str) -> None:
    for address in (f"{server}/video/日本.mp4?a=1#2", f"{server}/moved/a.mp4"):
        assert numbers(read(address, FIVE, default_frames=8).frames) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("404", "the server of `{}` answers 404 Not Found"),
        ("403", "the server of `{}` answers 403 Forbidden"),
        ("500", "the server of `{}` answers 500 Internal Server Error"),
        ("page", "`{}` is a web page"),
        ("stall", "`{}` cannot be fetched: timed out"),
        ("cut", "`{}` broke off "),
        ("chunks", "`{}` broke off before its end"),
        ("garbage", "`{}` cannot be fetched: "),
        ("loop", "the server of `{}` answers 302 "),
        ("disk", "the server of `{}` answers 302 Found - Redirection to url 'file:///etc/passwd' is not allowed"),
        ("ftp", "the server of `{}` sends to `ftp://127.0.0.1/a`"),
    ],
)
def test_a29_web_servers_that_give_no_video(server: str, kind: str, message: str) -> None:
    address = f"{server}/{kind}/a.mp4"
    found = error_of(address, limits=Limits(timeout_seconds=0.3)).message
    assert found.startswith(message.format(address))


def test_a29_web_address_that_nobody_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/a.mp4"
    assert error_of(address).message == f"`{address}` cannot be reached: Connection refused"
    assert "cannot be fetched" in error_of("http://[broken/a.mp4").message


def test_a29_web_files_have_a_size_cap(server: str) -> None:
    error = error_of(f"{server}/video/large.mp4", limits=Limits(max_copied_bytes=1000))
    assert error.message.endswith("goes on after 1,000 bytes")
    assert error.hint == "lift the limit with `--max-copied-bytes`"
