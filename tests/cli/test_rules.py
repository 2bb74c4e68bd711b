"""The command line of rules: a preview that is worked out and shown without a worker, and what is typed after it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.ledger.ledger import Ledger
from penstock.lifecycles.rules.run.machine import R, Run
from penstock.lifecycles.rules.tables import catalogue, catalogue_reading
from penstock.model.clock import SystemClock
from penstock.model.outcome import Write
from penstock.model.unit import Ref
from tests.support.prices import MACHINES

CONFIG = """
ledger.url = "sqlite:///penstock.db"

[rules.accounts.shop]
connector = "csv"
file = "prices.csv"
currency = "EUR"

[rules.rules.cut]
account = "shop"
currency = "EUR"
selector.everything = true
transform.percent = -10
limits.most_targets = 9
"""


class Place:
    """A folder with a configuration, a ledger, and a catalogue that was read."""

    def __init__(self, folder: Path, call: Any, items: int) -> None:
        self.folder, self._call = folder, call
        (folder / "penstock.toml").write_text(CONFIG)
        assert call("db", "upgrade", cwd=folder).code == 0
        self.url = f"sqlite:///{folder / 'penstock.db'}"
        now = SystemClock().now()
        rows = [
            {
                "account": "shop",
                "variant_id": f"v{n}",
                "product_id": f"p{n // 2}",
                "sku": f"SKU-{n}",
                "title": "",
                "vendor": "",
                "tags": [],
                "currency": "EUR",
                "unit_amount": 1_000 + n,
                "seen_in": 1,
                "seen_at": now,
            }
            for n in range(items)
        ]
        read = {"account": "shop", "number": 1, "variants": items, "started_at": now}
        whole = {"whole": 1, "whole_variants": items, "whole_at": now}
        with self.ledger() as ledger:
            ledger.write([Write(catalogue, rows), Write(catalogue_reading, [read | whole])])

    def ledger(self) -> Ledger:
        return Ledger.open(self.url, MACHINES)

    def run(self, run_id: str) -> Run:
        with self.ledger() as ledger:
            found = ledger.get(Ref("rule_run", run_id))
        assert isinstance(found, Run)
        return found

    def __call__(self, *words: str) -> Any:
        return self._call("rules", *words, cwd=self.folder)

    def json(self, *words: str) -> Any:
        answer = self(*words, "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)


@pytest.fixture
def place(tmp_path, penstock):
    return Place(tmp_path, penstock, 4)


def test_a_preview_is_shown_without_a_worker_and_says_what_to_type_next(place):
    answer = place("preview", "cut")
    assert answer.code == 0, answer.err
    for said in ("40.06 EUR", "36.06 EUR", "largest falls:", "SKU-0", "-10.00 %", "penstock rules queue "):
        assert said in answer.out
    shown = place.json("runs")["rows"][0]
    assert (shown["status"], shown["targets"], place.run(shown["run_id"]).previewed_at is not None) == (
        "PREVIEW",
        4,
        True,
    )
    words = next(line for line in answer.out.splitlines() if "rules queue" in line).split("penstock rules ")[1].split()
    refused = place(*words)
    assert refused.code == 2
    assert "this would set 4 prices of shop by cut; nobody can be asked here" in refused.err
    assert place(*words, "--dry-run").out.startswith("this would set 4 prices of shop by cut")
    queued = place(*words, "--yes")
    assert queued.out.startswith("done: set 4 prices of shop by cut")
    assert place.run(shown["run_id"]).status is R.QUEUED
    again = place(*words, "--yes")
    assert (again.code, "is QUEUED; only a preview is queued" in again.err) == (2, True)


def test_the_answer_of_a_preview_is_one_json_document(place):
    shown = place.json("preview", "cut", "--reason", "look")
    assert (shown["status"], shown["targets"], shown["needs_approval"]) == ("PREVIEW", 4, False)
    assert shown["digest"] == place.run(shown["run_id"]).preview_digest
    dry = place("preview", "cut", "--dry-run", "--json")
    planned = json.loads(dry.out)
    assert (planned["says"], planned["count"]) == ("preview cut (version 1) for shop", 1)
    assert len(place.json("runs")["rows"]) == 1
    # What was shown by one command can be carried out by another.
    assert place("preview", "cut", "--digest", planned["digest"]).code == 0
    assert place("preview", "cut", "--digest", "0" * 16).code == 2


def test_a_preview_that_is_to_be_queued_asks_first_and_is_queued_by_this_process(place):
    refused = place("preview", "cut", "--queue")
    assert (refused.code, "and queue it; nobody can be asked here" in refused.err) == (2, True)
    shown = place.json("preview", "cut", "--queue", "--yes")
    assert place.run(shown["run_id"]).status in (R.QUEUED, R.APPLYING)


def test_targets_are_printed_as_csv(place):
    run = place.json("preview", "cut")["run"]
    rows = list(csv.DictReader(io.StringIO(place("targets", run, "--csv").out)))
    assert [(row["sku"], row["before"], row["after"], row["before_amount"]) for row in rows[:2]] == [
        ("SKU-0", "10.00 EUR", "9.00 EUR", "1000"),
        ("SKU-1", "10.01 EUR", "9.01 EUR", "1001"),
    ]
    assert "there are more: --after v1" in place("targets", run, "--limit", "2").err


def test_what_is_wrong_is_one_line_and_exit_code_2(place):
    for words, said in (
        (("preview", "cit"), "did you mean cut?"),
        (("queue", "nonesuch", "--yes"), "no run 'nonesuch' in the ledger"),
        (("cancel", "x"), "needs --reason TEXT"),
        (
            ("preview", "cut", "--start-at", "2026-11-27T00:00:00Z", "--end-at", "2026-11-26T00:00:00Z"),
            "before its start",
        ),
        (("history", "NO-SUCH"), "no catalogue has the SKU 'NO-SUCH'"),
        (
            ("lock", "NO-SUCH", "--account", "shop", "--reason", "x", "--yes"),
            "the catalogue of shop has no SKU NO-SUCH",
        ),
    ):
        answer = place(*words)
        assert (answer.code, said in answer.err) == (2, True), answer.err
    assert place.json("runs")["rows"] == []


def test_rules_are_imported_listed_and_locked(place):
    assert "put 1 rule into force: cut (version 1)" in place("import", "--yes").out
    assert "cut is unchanged: version 1 stays" in place("import", "--yes").err
    (row,) = place.json("list")["rows"]
    assert (row["rule"], row["does"], row["version"]) == ("cut", "-10 %: everything", 1)
    (place.folder / "list.csv").write_text("sku,price\nSKU-1,9.00\n")
    words = ("import", "--prices", "list.csv", "--name", "listed", "--account", "shop", "--currency", "EUR", "--yes")
    assert place(*words).code == 0
    assert [row["rule"] for row in place.json("list")["rows"]] == ["cut", "listed"]
    assert (
        place("lock", "SKU-1", "--account", "shop", "--reason", "a deal", "--yes").out == "done: lock SKU-1 of shop\n"
    )
    assert place.json("locked")["rows"][0]["sku"] == "SKU-1"
    for name in ("reports", "dead", "drain", "metrics", "alerts"):
        assert place(name).code == 0
