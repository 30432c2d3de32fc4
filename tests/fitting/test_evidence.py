"""Cleaning a table of runs: every row is accounted for, and the shipped receipts are what the rules make of the
shipped table.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from twin.errors import CatalogueError
from twin.fitting.evidence import clean, is_evidence, log_csv, read_rules
from twin.fitting.receipts import receipts_csv

HEADER = "id,source,date,lane,engine,checkpoint,parallelism,k,verification,workload,context_tokens,concurrency,tokens_per_step,step_ms,step_ms_derived,tok_s_per_stream,tok_s_aggregate,prefill_tok_s,notes"


def _table(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def _rules(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(text)
    return path


def test_every_row_of_the_shipped_table_has_one_log_line_and_shipped_receipts_are_current(roots):
    folder = roots[-1] / "calibration"
    receipts, log = clean(folder / "evidence" / "receipts.csv", read_rules(folder / "evidence" / "rules.toml"))
    with (folder / "evidence" / "receipts.csv").open(encoding="utf-8") as stream:
        import csv

        assert Counter(line.id for line in log) == Counter(row["id"] for row in csv.DictReader(stream))
    assert all(line.reason for line in log)
    for lane in {r.lane for r in receipts}:
        shipped = (folder / "receipts" / "evidence" / f"{lane}.csv").read_text(encoding="utf-8")
        assert shipped == receipts_csv([r for r in receipts if r.lane == lane]), lane
    assert (folder / "evidence" / "log.csv").read_text(encoding="utf-8") == log_csv(log)


def test_first_matching_rule_decides_and_an_unmatched_row_says_so(tmp_path):
    table = _table(
        tmp_path, "a-1,s,,box,e,c,,5,,prose,2048,1,2.9,10.5,,,,,", "b-1,s,,box,e,c,,5,,prose,2048,1,2.9,10.5,,,,,"
    )
    rules = read_rules(
        _rules(
            tmp_path,
            '[[rule]]\nids = ["a-"]\nlane = "sidecar"\ntraffic = "prose"\n[[rule]]\nids = ["a-1"]\nexclude = "never reached"\n',
        )
    )
    receipts, log = clean(table, rules)
    assert [(r.id, r.quantity, r.value, r.tokens_per_step) for r in receipts] == [("a-1", "step_time", 10.5, 2.9)]
    assert log[1].reason == "no rule knows this lane"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("a-1,s,,box,e,c,,5/3/3,,prose,2048,1,,10.5,,,,,", "k is '5/3/3', not one number"),
        ("a-1,s,,box,e,c,,5,,prose,2048,1..32,,10.5,,,,,", "concurrency is '1..32', not one number"),
        ("a-1,s,,box,e,c,,5,,prose,2048,1,9.5,10.5,,,,,", "9.5 tokens per step cannot come of k = 5"),
        ("a-1,s,,box,e,c,,5,,prose,2048,1,3.1,,,,,,", "acceptance only: it belongs to a traffic class"),
        ("a-1,s,,box,e,c,,5,,prose,2048,1,,12.81 -> 12.40,,,,,", "no step time and no rate"),
    ],
)
def test_rows_that_cannot_be_receipts_say_why(tmp_path, row, reason):
    _, log = clean(_table(tmp_path, row), read_rules(_rules(tmp_path, '[[rule]]\nids = ["a-"]\nlane = "sidecar"\n')))
    assert log[0].reason == reason


def test_ranges_become_their_middle_and_counters_give_acceptance(tmp_path):
    rows = (
        "a-1,s,,box,e,c,,5,,prose,2048,1,,10.01-10.06,,,,,",
        "a-2,s,,box,e,c,,5,,prose,2048,1,,,10.7,,,,mean TPOT 2.27 ms; drafted 5400 accepted 4042 from counters",
    )
    receipts, _ = clean(
        _table(tmp_path, *rows), read_rules(_rules(tmp_path, '[[rule]]\nids = ["a-"]\nlane = "sidecar"\n'))
    )
    assert receipts[0].value == pytest.approx(10.035)
    assert receipts[1].tokens_per_step == pytest.approx(1 + 4042 / (5400 / 5))


def test_plain_decoding_rate_is_a_step_time(tmp_path):
    receipts, _ = clean(
        _table(tmp_path, "a-1,s,,box,e,c,,0,,prose,2048,8,,,,,409,,"),
        read_rules(_rules(tmp_path, '[[rule]]\nids = ["a-"]\nlane = "sidecar"\n')),
    )
    assert receipts[0].quantity == "step_time" and receipts[0].value == pytest.approx(8e3 / 409)


def test_a_rule_file_with_a_wrong_key_names_it(tmp_path):
    with pytest.raises(CatalogueError, match="lanes"):
        read_rules(_rules(tmp_path, '[[rule]]\nlanes = "sidecar"\n'))


def test_tables_are_told_from_receipts(tmp_path, roots):
    assert is_evidence(roots[-1] / "calibration" / "evidence" / "receipts.csv")
    assert not is_evidence(roots[-1] / "calibration" / "receipts" / "mission.csv")
    assert not is_evidence(tmp_path / "missing.csv")


def test_a_context_in_thousands_is_read(tmp_path):
    receipts, _ = clean(
        _table(tmp_path, "a-1,s,,box,e,c,,0,,prose,64k,1,,,,,60.5,,", "a-2,s,,box,e,c,,0,,prose,low,1,,,,,60.5,,"),
        read_rules(_rules(tmp_path, '[[rule]]\nids = ["a-"]\nlane = "sidecar"\ncontext_tokens = 300\n')),
    )
    assert [r.context_tokens for r in receipts] == [65536, 300]


def test_a_step_derived_from_mean_tpot_says_so_and_a_lone_ttft_is_kept(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text(
        HEADER.replace("prefill_tok_s", "prefill_tok_s,ttft_ms")
        + "\na-1,s,,box,e,c,,5,,8K in 1024 out,8192,1,2.9,,10.5,,260,,216,\na-16,s,,box,e,c,,3,,8K in 1024 out,8192,16,2.7,,29.5,,1335,,786,\n"
    )
    rules = '[[rule]]\nids = ["a-"]\nlane = "sidecar"\nderived_step = "mean_tpot"\nttft = true\n'
    receipts, _ = clean(table, read_rules(_rules(tmp_path, rules)))
    found = [(r.id, r.quantity, r.definition, r.output_tokens, r.value) for r in receipts]
    assert found == [
        ("a-1", "step_time", "mean_tpot", 1024, 10.5),
        ("a-1-ttft", "ttft", "", None, 216.0),
        ("a-16", "step_time", "mean_tpot", 1024, 29.5),
    ]
