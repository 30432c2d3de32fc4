"""The dependency audit never calls clean what it could not ask about."""

from __future__ import annotations

import pytest
from release.audit import verdict

CLEAN = {"name": "numpy", "version": "2.4", "vulns": []}
BAD = {"name": "click", "version": "8.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["8.1"]}]}
SKIPPED = {"name": "scipy", "skip_reason": "could not be found"}
SILENT = {"name": "rich", "version": "13"}
OWN = {"name": "twin-lane", "skip_reason": "distribution marked as editable"}


@pytest.mark.parametrize(
    ("dependencies", "word", "code"),
    [
        ([CLEAN, OWN], "clean: 1", 0),
        ([CLEAN, BAD, SKIPPED], "VULNERABLE\n  click 8.0: PYSEC-1, fixed in 8.1\n  scipy", 1),
        ([CLEAN, SKIPPED], "NOT AUDITED\n  scipy", 2),
        ([CLEAN, SILENT], "NOT AUDITED\n  rich", 2),
        ([OWN], "NOT AUDITED", 2),
        ([], "NOT AUDITED", 2),
    ],
)
def test_clean_means_that_everything_was_asked_about(dependencies: list, word: str, code: int) -> None:
    text, found = verdict({"dependencies": dependencies})
    assert text.startswith(word) and found == code
