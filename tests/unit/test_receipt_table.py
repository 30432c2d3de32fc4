"""Receipts as a CSV table."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from twin.errors import ReceiptError
from twin.fitting.load import read_all, receipt_files, resolve_receipts
from twin.fitting.receipts import COLUMNS, Receipt, parse_receipts, read_receipts, receipts_csv
from twin.lane.catalogue import catalogue_roots

GOOD = "id,source,lane,traffic,k,context_tokens,concurrency,quantity,value,unit\n"
ROW = "a,mine,tp4,mixed,7,2048,1,step_time,8.5,ms\n"


@given(st.lists(strategies.models("twin.fitting.receipts.Receipt"), max_size=4, unique_by=lambda r: r.id))
def test_a_table_comes_back_as_it_was(receipts: list[Receipt]) -> None:
    assert parse_receipts(receipts_csv(receipts)) == receipts


def test_columns_come_in_any_order_and_optional_ones_may_be_missing() -> None:
    (receipt,) = parse_receipts(GOOD + ROW)
    assert receipt.verification == "token" and receipt.tokens_per_step is None and receipt.use == "fit"
    names, cells = (line.strip().split(",") for line in (GOOD, ROW))
    order = list(range(len(names)))
    random.Random(0).shuffle(order)
    shuffled = "\n".join(",".join(row[i] for i in order) for row in (names, cells))
    assert parse_receipts(shuffled) == [receipt]


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(b"\xef\xbb\xbf" + (GOOD + ROW).encode())
    assert len(read_receipts(path)) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("traffic", "trafic") + ROW, ["unknown column 'trafic'", "did you mean 'traffic'"]),
        (GOOD.replace("value,", "") + ROW, ["the column 'value' is missing"]),
        (GOOD + ROW.replace("8.5", "fast"), ["line 2, column 'value'", "'fast' is not a number"]),
        (GOOD + ROW.replace("8.5", "nan"), ["line 2, column 'value'"]),
        (GOOD + ROW.replace("8.5", "-1"), ["line 2, column 'value'", "greater than 0"]),
        (GOOD + ROW.replace(",7,", ",7.5,"), ["line 2, column 'k'", "'7.5' is not a number"]),
        (GOOD + ROW.replace(",7,", ",-1,"), ["line 2, column 'k'", "greater than or equal to 0"]),
        (GOOD + ROW.replace("ms", "s"), ["line 2, column 'unit'"]),
        (GOOD + ROW.replace("ms", "tok/s"), ["line 2: step_time is in ms, got the unit 'tok/s'"]),
        (GOOD + ROW.replace("step_time", "speed"), ["line 2, column 'quantity'"]),
        (GOOD + ROW + ROW, ["line 3: the id 'a' was used in line 2"]),
        (GOOD + ROW.strip() + ",more\n", ["line 2: more cells than columns"]),
        (GOOD + "a,mine,tp4\n", ["line 2: fewer cells than columns"]),
        (GOOD + ROW.replace("step_time,8.5,ms", "tok_s_ratio,1.1,ratio"), ["a ratio needs versus_lane and versus_k"]),
        (GOOD.strip() + ",use\n" + ROW.strip() + ",exclude\n", ["an excluded receipt needs a reason"]),
    ],
)
def test_a_broken_table_is_told_where(text: str, says: list[str]) -> None:
    with pytest.raises(ReceiptError) as refused:
        parse_receipts(text, where="mine.csv")
    assert str(refused.value).startswith("mine.csv")
    assert all(part in str(refused.value) for part in says), str(refused.value)


def test_files_that_are_not_text_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(ReceiptError, match="cannot be read"):
        read_receipts(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"id,source\n\xff\xfe\n")
    with pytest.raises(ReceiptError, match="not UTF-8"):
        read_receipts(tmp_path / "binary.csv")


def test_an_id_is_used_once_over_all_files(tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text(GOOD + ROW, encoding="utf-8")
    with pytest.raises(ReceiptError, match=r"two\.csv: the id 'a' was already used in .*one\.csv"):
        read_all([tmp_path / "one.csv", tmp_path / "two.csv"])


@pytest.mark.parametrize(("change", "says"), [(("tp4", "tp5"), "no lane named 'tp5'"), (("mixed", "mixd"), "mixd")])
def test_a_receipt_of_no_known_lane_or_class(change: tuple[str, str], says: str) -> None:
    receipts = parse_receipts(GOOD + ROW.replace(*change))
    with pytest.raises(ReceiptError, match="receipt 'a'") as refused:
        resolve_receipts(receipts, catalogue_roots())
    assert says in str(refused.value)


def test_shipped_receipts_are_read_and_resolved() -> None:
    receipts = read_all(receipt_files(catalogue_roots()))
    assert len(receipts) >= 20 and all(r.source for r in receipts)
    used = [r for r in receipts if r.use != "exclude"]
    assert len(resolve_receipts(used, catalogue_roots())) == len(used)
    assert set(receipts_csv([]).strip().split(",")) == set(COLUMNS)


@given(st.text(max_size=200))
def test_any_text_is_a_table_or_refused(text: str) -> None:
    with contextlib.suppress(ReceiptError):
        parse_receipts(text)
