"""A home of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

_ENVIRONMENT = ("NO_COLOR", "FORCE_COLOR", "WQ_NO_PROGRESS", "COLUMNS", "LINES")


@pytest.fixture(autouse=True)
def config_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("WQ_CONFIG_HOME", str(folder))
    for name in _ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return folder
