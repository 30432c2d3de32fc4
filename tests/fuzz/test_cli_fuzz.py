"""A short seeded run of the fuzzer; the long one is `python -m tests.fuzz --cases 100000 --seed 1 --workers 2`."""

from __future__ import annotations

import collections

import pytest

from fuzz.cases import Case, make_case
from fuzz.run import report, run_case

CHUNK = 25


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 6 * CHUNK, CHUNK))
def test_no_traceback_and_a_known_exit_code(first: int) -> None:
    wrong = [found for number in range(first, first + CHUNK) if (found := report(0, number)) is not None]
    assert not wrong, "\n\n".join(wrong)


def test_a_number_gives_the_same_case_and_every_kind_is_drawn() -> None:
    assert make_case(3, 17) == make_case(3, 17)
    kinds = collections.Counter(make_case(0, n).kind.split()[0] for n in range(600))
    assert set(kinds) == {
        "flags", "catalogue", "traffic", "calibration", "receipts", "import", "study", "counts", "rerun",
        "clean", "serve", "board", "watch",
    }  # fmt: skip


def test_the_judge_sees_what_it_must() -> None:
    assert run_case(Case("ok", ["lanes"])) is None
    assert run_case(Case("refusal", ["predict", "--lane", "nowhere"])) is None
    named = Case("file", ["predict", "--lane", "tp4", "--calibration", "{dir}/a.json"], {"a.json": b"{"}, "other.json")
    assert "does not name the file" in (run_case(named) or "")


@pytest.mark.parametrize("word", ["a" * 5000, "\x01", "../" * 500, "nul\x00"])
def test_names_that_no_file_can_have(word: str) -> None:
    for words in (
        ["lanes", "--catalogue", word],
        ["import", word],
        ["predict", "--lane", "tp4", "--calibration", f"{word}.json"],
    ):
        assert run_case(Case("names", words)) is None
