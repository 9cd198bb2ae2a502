"""`wq` with a pipeline that answers at once.

Run as a script, streams, signals and encodings are real: the first argument says what happens, the rest is the
command line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import results_by_hand as by_hand

from wq_cli import pipeline
from wq_cli.app import main
from wq_cli.errors import DeviceError, VideoError

ANSWER = ["a [bold]dog[/bold]", " appears", ", then 一只 ✓ cat"]


def ask(video: str, prompt: str, settings: Any, listener: Any) -> Any:
    mode = os.environ["FAKE_MODE"]
    if mode == "video-error":
        raise VideoError(f"`{video}` holds no video", "check the file")
    listener.stage("load")
    listener.stage("decode", 4)
    for _ in range(4):
        listener.advance()
        time.sleep(0.01)
    if mode == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    listener.stage("prefill", 8)
    if mode == "bug":
        raise ZeroDivisionError("division\nby zero")
    result = by_hand.ask_result(
        prompt=prompt, path=video, windows=int(os.environ.get("FAKE_WINDOWS", "17")), answer="".join(ANSWER)
    )
    listener.prepared(result)
    listener.stage("generate", 3)
    for number, piece in enumerate(ANSWER):
        listener.token(piece)
        listener.advance()
        if mode == "fail-while-answering" and number == 1:
            raise DeviceError("`cuda` ran out of memory")
        if mode == "interrupt-while-answering" and number == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        time.sleep(0.01)
    return result


def inspect(video: str, prompts: list[str], settings: Any, listener: Any) -> Any:
    import numpy as np

    class Clip:
        frames = np.zeros((4, 8, 8, 3), np.uint8)

    listener.stage("score")
    return by_hand.inspect_result(texts=tuple(prompts), path=video), Clip


if __name__ == "__main__":
    pipeline.ask, pipeline.inspect = ask, inspect
    os.environ["FAKE_MODE"] = sys.argv[1]
    sys.exit(main(sys.argv[2:]))
