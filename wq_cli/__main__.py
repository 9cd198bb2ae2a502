"""`wq`, and `python -m wq_cli`: the app is imported where an interrupt can already be caught."""

from __future__ import annotations

import gc
import os
import sys


def main() -> int:
    """Run `wq` and return its exit code."""
    # PyTorch's threads wait by spinning otherwise: on a busy machine that takes three times as long as the work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Imports leave millions of objects that stay: looking for garbage among them is a fifth of the time to load.
    # `pipeline.load_model` turns collection on again.
    gc.disable()
    try:
        from wq_cli.app import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
