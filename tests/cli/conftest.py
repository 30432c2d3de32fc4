"""The `twin` fixture."""

from __future__ import annotations

import pytest
from cli_support import Twin


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Twin:
    """Run `twin ARGS` in this process."""
    return Twin(monkeypatch, capsys)
