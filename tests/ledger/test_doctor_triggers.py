"""The doctor and the triggers: one that was removed, replaced, emptied or switched off is found by its name."""

from __future__ import annotations

import pytest

from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from tests.support.hand import Hand
from tests.support.machines import MACHINES


def found(url: str) -> dict[str, str]:
    """What the doctor finds wrong, by subject; every finding is about triggers."""
    with Ledger.open(url, MACHINES) as ledger:
        findings = examine(ledger.database, ledger.machines)
    assert {f.check for f in findings} <= {"triggers"}
    assert all(f.message.endswith("run 'penstock db upgrade'") for f in findings)
    return {f.subject: f.message.split(";")[0] for f in findings}


def healed(url: str) -> None:
    """What the doctor advises makes it good."""
    Ledger.open(url, MACHINES, create=True).close()
    assert found(url) == {}


def names(hand: Hand, table: str) -> list[str]:
    """The triggers of a table."""
    if hand.dialect == "sqlite":
        sql = f"SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '{table}' ORDER BY 1"
    else:
        sql = f"SELECT tgname FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND NOT tgisinternal ORDER BY 1"
    return [row[0] for row in hand.type(sql)]


def test_a_fresh_ledger_is_sound(hand, ledger_url):
    assert found(ledger_url) == {}


def test_a_removed_trigger_is_found(hand, ledger_url):
    there = [(name, table) for table in ("invoice", "partitions", "transition_log") for name in names(hand, table)]
    assert len(there) > 8
    for name, table in there:
        hand.type(f"DROP TRIGGER {name}" + ("" if hand.dialect == "sqlite" else f" ON {table}"))
    assert found(ledger_url) == {name: "is missing" for name, _ in there}
    healed(ledger_url)


def test_a_trigger_replaced_by_one_of_its_name_is_found(sqlite_hand, tmp_path):
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    there = names(sqlite_hand, "invoice")
    for name in there:
        sqlite_hand.type(f"DROP TRIGGER {name}")
        sqlite_hand.type(f"CREATE TRIGGER {name} AFTER INSERT ON invoice BEGIN SELECT 1; END")
    assert found(url) == dict.fromkeys(there, "was changed")
    healed(url)


def test_a_postgres_trigger_replaced_by_one_of_its_name_is_found(postgres_hand, postgres_url):
    """The same name and function, on the same table and switched on: only what it fires for is another."""
    rows = postgres_hand.type(
        "SELECT tgname, proname FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid"
        " WHERE tgrelid = 'invoice'::regclass AND NOT tgisinternal ORDER BY 1"
    )
    assert len(rows) > 2
    for name, function in rows:
        postgres_hand.type(f"DROP TRIGGER {name} ON invoice")
        postgres_hand.type(
            f"CREATE TRIGGER {name} BEFORE UPDATE ON invoice FOR EACH ROW WHEN (false) EXECUTE FUNCTION {function}()"
        )
        postgres_hand.type(f"ALTER TABLE invoice ENABLE ALWAYS TRIGGER {name}")
    assert found(postgres_url) == dict.fromkeys([name for name, _ in rows], "was changed")
    healed(postgres_url)


@pytest.mark.parametrize("how", ["DISABLE", "ENABLE", "ENABLE REPLICA"])
def test_a_trigger_that_is_not_always_on_is_found(postgres_hand, postgres_url, how):
    (name, *_) = names(postgres_hand, "invoice")
    postgres_hand.type(f"ALTER TABLE invoice {how} TRIGGER {name}")
    assert found(postgres_url) == {name: "is switched off"}
    healed(postgres_url)


def test_a_function_that_was_emptied_is_found(postgres_hand, postgres_url):
    (function, *_) = [
        row[0] for row in postgres_hand.type("SELECT proname FROM pg_proc WHERE proname LIKE 'penstock%'")
    ]
    postgres_hand.type(
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
    )
    assert list(found(postgres_url)) == [function]
    healed(postgres_url)
