"""Makes the pictures of the README from real runs of the commands they show: `python docs/make_pictures.py`."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
EXAMPLE = "wq_cli/scenes/assets/example.mp4"
COLUMNS = 86


def terminal_output(command: list[str]) -> str:
    """What a command prints on a terminal, colours included, the progress line left out."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "LINES": "60",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "WQ_NO_PROGRESS": "1",
    }
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    if process.wait() != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{b''.join(chunks).decode()}")
    return b"".join(chunks).decode().replace("\r\n", "\n")


def draw(title: str, shown: list[str], target: Path) -> None:
    """Run `shown` (without `wq`) and save the terminal as SVG."""
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), color_system="truecolor")  # noqa: SIM115
    quoted = " ".join(f'"{part}"' if " " in part else part for part in ["wq", *shown])
    console.print(Text.assemble(("$ ", "dim"), (quoted, "bold")))
    console.print(Text.from_ansi(terminal_output(["wq", *shown])))
    target.write_text(console.export_svg(title=title, clear=False), encoding="utf-8")


def main() -> None:
    """All pictures of docs/media."""
    media = ROOT / "docs" / "media"
    media.mkdir(exist_ok=True)
    draw("wq ask", ["ask", EXAMPLE, "what happens?"], media / "ask.svg")
    prompts = ["--prompt", "an octopus chases a penguin", "--prompt", "orange diamonds"]
    draw("wq inspect", ["inspect", EXAMPLE, *prompts, "--png", "docs/media/inspect.png"], media / "inspect.svg")


if __name__ == "__main__":
    main()
