"""What every test shares: property tests that repeat, and no catalogue of the person who runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples on every machine: a suite that fails by luck tells a newcomer nothing. HYPOTHESIS_PROFILE=explore
# looks further with new examples each time.
settings.register_profile(
    "repeat", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own catalogue, colours and window width must not change what tests see."""
    for name in ("TWIN_CATALOGUE", "COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Path]:
    """An empty folder of the catalogue's shape, for entries a test writes."""
    root = tmp_path / "catalogue"
    for folder in ("devices", "links", "checkpoints", "engines", "lanes"):
        (root / "hardware" / folder).mkdir(parents=True)
    for folder in ("calibration/fits", "calibration/receipts", "scenarios/traffic"):
        (root / folder).mkdir(parents=True)
    yield root
