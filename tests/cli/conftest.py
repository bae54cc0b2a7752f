"""The folder that questions are asked in."""

import json
from pathlib import Path

import pytest
from small_configs import HUGE, TINY


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with tiny.json and huge.json in it."""
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    (tmp_path / "huge.json").write_text(json.dumps(HUGE))
    monkeypatch.chdir(tmp_path)
    return tmp_path
