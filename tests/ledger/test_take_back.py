"""Going back to an older program: what a newer one added stays, is left alone, and is found again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.ledger.care.doctor import examine
from penstock.ledger.commit import Won
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.check import check
from penstock.ledger.schema.install import Wanted, install
from penstock.ledger.store.database import open_database
from penstock.model.clock import SystemClock
from penstock.model.errors import LedgerMismatch
from penstock.model.machine import Actor, Machine
from penstock.model.outcome import Outcome, Write
from penstock.model.unit import Ref, replace
from tests.ledger.test_migrate import Grown, data_table, invoices_of, revisions  # noqa: F401 - a fixture
from tests.support.hand import Hand
from tests.support.machines import INVOICE, InvoiceState, invoice
from tests.support.schema import compare, describe

NEWER = invoices_of(Grown)
OLD_LINE = data_table()
NEW_LINE = data_table(sa.Column("price", sa.Text), sa.Column("seen", sa.Integer, nullable=False, server_default="1"))
SEEN = datetime(2026, 1, 2, tzinfo=UTC)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def upgraded(url: str, machine: Machine, table: sa.Table, **how: Any) -> None:
    database = open_database(url, SystemClock())
    try:
        install(database, [machine], [table], **how)
    finally:
        database.close()


def grown(number: str) -> Grown:
    return Grown(tenant="acme", number=number, amount_minor=1, due_at=LONG_AGO, note="kept", seen_at=SEEN, copies=3)


def released_and_withdrawn(url: str) -> None:
    upgraded(url, INVOICE, OLD_LINE)
    upgraded(url, NEWER, NEW_LINE)
    with Ledger.open(url, [NEWER]) as ledger:
        ledger.birth([grown("1")], actor=Actor.API, who="test")
    with Hand(url) as hand:
        hand.type("INSERT INTO line (id, text, price) VALUES (1, 'a', '1.50')")
    upgraded(url, INVOICE, OLD_LINE, take_back=True)


def test_the_older_program_is_back_and_works(ledger_url):
    released_and_withdrawn(ledger_url)
    with Ledger.open(ledger_url, [INVOICE]) as ledger:
        assert ledger.birth([invoice("2", due_at=LONG_AGO)], actor=Actor.API, who="test") == 1
        worker = ledger.incarnation()
        worker.register()
        units: dict[str, Any] = {u.unit_id[-1]: u for u in worker.claim({"invoice": 5})}
        assert set(units) == {"1", "2"}
        rows = [{"id": 1, "text": "b"}, {"id": 2, "text": "c"}]
        outcomes = [
            Outcome(u, replace(u, status=InvoiceState.SENT, remote_id=n), "sent", writes=[Write(OLD_LINE, rows)])
            for n, u in units.items()
        ]
        entries = [ledger.preparer.entry(o, "test") for o in outcomes]
        assert worker.commit(entries) == [Won(), Won()]
        worker.retire()
        assert examine(ledger.database, ledger.machines) == []
        assert check(ledger.database, Wanted((INVOICE,), (OLD_LINE,))).findings == []
    with Hand(ledger_url) as hand:
        assert hand.type("SELECT number, note, copies FROM invoice ORDER BY number") == [
            ("1", "kept", 3),
            ("2", None, 1),
        ]
        assert hand.type("SELECT id, text, price, seen FROM line ORDER BY id") == [
            (1, "b", "1.50", 1),
            (2, "c", None, 1),
        ]
    upgraded(ledger_url, INVOICE, OLD_LINE)  # and once more, as every start of it may


def test_the_newer_program_finds_what_it_added_when_it_comes_again(ledger_url):
    upgraded(ledger_url, INVOICE, OLD_LINE)
    upgraded(ledger_url, NEWER, NEW_LINE)
    before = describe(ledger_url)
    upgraded(ledger_url, INVOICE, OLD_LINE, take_back=True)
    with Ledger.open(ledger_url, [INVOICE]) as ledger:
        ledger.birth([invoice("2")], actor=Actor.API, who="test")
    upgraded(ledger_url, NEWER, NEW_LINE, take_back=True)
    assert not (found := compare(before, describe(ledger_url))), found
    with Ledger.open(ledger_url, [NEWER]) as ledger:
        unit = ledger.get(Ref("invoice", "acme/2"))
        assert (unit.note, unit.copies) == (None, 1)  # type: ignore[attr-defined]
    with Hand(ledger_url) as hand:
        assert hand.type("SELECT name FROM penstock_meta WHERE name LIKE 'left %'") == []
    with pytest.raises(LedgerMismatch, match="differ in price: the ledger has this column, the program does not"):
        upgraded(ledger_url, NEWER, OLD_LINE)  # what was taken up is somebody's again


def test_a_column_that_is_not_known_is_still_refused_without_take_back(ledger_url):
    """It may be the old name of a new one, and hold what would be missed."""
    upgraded(ledger_url, NEWER, NEW_LINE)
    with pytest.raises(LedgerMismatch, match=r"needs a migration first, or, if a newer program added it, go back with"):
        upgraded(ledger_url, NEWER, OLD_LINE)


@pytest.mark.parametrize("table", ["invoice", "line"])
def test_a_column_that_births_would_have_to_fill_is_refused_untouched(ledger_url, table):
    upgraded(ledger_url, INVOICE, OLD_LINE)
    with Hand(ledger_url) as hand:
        hand.type(f"ALTER TABLE {table} ADD COLUMN must INTEGER")
        if hand.dialect == "sqlite":
            hand.type("PRAGMA writable_schema = ON")
            hand.type("UPDATE sqlite_schema SET sql = replace(sql, 'must INTEGER', 'must INTEGER NOT NULL')")
            hand.type("PRAGMA writable_schema = RESET")
        else:
            hand.type(f"ALTER TABLE {table} ALTER COLUMN must SET NOT NULL")
    before = describe(ledger_url)
    with pytest.raises(
        LedgerMismatch, match=rf"table {table} .* differ in must: .* NOT NULL without a default in the database; the"
    ):
        upgraded(ledger_url, INVOICE, OLD_LINE, take_back=True)
    assert describe(ledger_url) == before


def test_a_release_that_brought_the_column_by_a_revision_of_its_own(ledger_url, revisions, tmp_path):  # noqa: F811
    place = revisions(1, "pass")
    upgraded(ledger_url, INVOICE, OLD_LINE, migrations=[place])
    revisions(2, "op.add_column('line', sa.Column('note', sa.Text))")
    newer = data_table(sa.Column("note", sa.Text))
    upgraded(ledger_url, INVOICE, newer, migrations=[place])
    (second,) = tmp_path.glob("own_*/migrations/r0002_own.py")
    text = second.read_text()
    second.unlink()  # the older program is installed again
    with pytest.raises(LedgerMismatch, match="use a newer program"):
        upgraded(ledger_url, INVOICE, OLD_LINE, migrations=[place])
    upgraded(ledger_url, INVOICE, OLD_LINE, migrations=[place], take_back=True)
    upgraded(ledger_url, INVOICE, OLD_LINE, migrations=[place])
    with Ledger.open(ledger_url, [INVOICE], migrations=[place]) as ledger:
        assert ledger.birth([invoice("2")], actor=Actor.API, who="test") == 1
    second.write_text(text)
    upgraded(ledger_url, INVOICE, newer, migrations=[place])  # does not run its revision again
    second.unlink()
    with pytest.raises(LedgerMismatch, match="use a newer program"):
        upgraded(ledger_url, INVOICE, OLD_LINE, migrations=[place])
