"""The views of a program: one that is missing or was changed is found and mended, and the others are left alone."""

from __future__ import annotations

from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.check import check
from penstock.ledger.schema.install import Wanted
from tests.support.hand import Hand
from tests.support.machines import MACHINES

VIEWS = {
    "unsent": "SELECT tenant, number FROM invoice WHERE status <> 'SENT'",
    "unsent_by_tenant": "SELECT tenant, count(*) AS many FROM unsent GROUP BY tenant",
}


def upgrade(url: str, views: dict[str, str] = VIEWS) -> None:
    Ledger.open(url, MACHINES, create=True, views=views).close()


def found(url: str, views: dict[str, str] = VIEWS) -> dict[str, str]:
    """What `doctor` finds wrong with views, by name; `db check` finds the same."""
    with Ledger.open(url, MACHINES) as ledger:
        examined = [f for f in examine(ledger.database, ledger.machines, views=views) if f.check == "views"]
        assert check(ledger.database, Wanted(MACHINES, views=views)).findings == examined
    assert all(f.message.endswith("; run 'penstock db upgrade'") for f in examined)
    return {f.subject: f.message.removesuffix("; run 'penstock db upgrade'") for f in examined}


def test_a_view_that_was_removed_is_found_and_mended(ledger_url):
    upgrade(ledger_url)
    assert found(ledger_url) == {}
    with Hand(ledger_url) as hand:
        hand.type("DROP VIEW unsent_by_tenant")
    assert found(ledger_url) == {"unsent_by_tenant": "the view is missing"}
    upgrade(ledger_url)
    assert found(ledger_url) == {}


def test_a_view_that_was_replaced_is_found_and_mended(ledger_url):
    """The one that reads it is made anew as well: PostgreSQL drops no view that another reads."""
    upgrade(ledger_url)
    with Hand(ledger_url) as hand:
        other = "SELECT tenant, number FROM invoice WHERE status = 'SENT'"
        if hand.dialect == "sqlite":
            hand.type("DROP VIEW unsent")
            hand.type(f"CREATE VIEW unsent AS {other}")
        else:
            hand.type(f"CREATE OR REPLACE VIEW unsent AS {other}")
    assert found(ledger_url) == {"unsent": "the view was changed"}
    upgrade(ledger_url)
    assert found(ledger_url) == {}


def test_a_view_that_the_program_has_changed_is_found_and_mended(ledger_url):
    upgrade(ledger_url)
    newer = VIEWS | {"unsent": "SELECT tenant, number, status FROM invoice WHERE status <> 'SENT'"}
    assert found(ledger_url, newer) == {"unsent": "the view was changed"}
    upgrade(ledger_url, newer)
    assert found(ledger_url, newer) == {}
    assert found(ledger_url) == {"unsent": "the view was changed"}


def test_a_view_that_stands_keeps_its_grants_and_what_is_built_on_it(postgres_url):
    """`penstock up` brings the ledger up to date at every start, and must take nothing from a reader."""
    upgrade(postgres_url)
    with Hand(postgres_url) as hand:
        hand.type("CREATE VIEW mine AS SELECT many FROM unsent_by_tenant")
        hand.type("GRANT SELECT ON unsent TO PUBLIC")
        upgrade(postgres_url)
        assert hand.type("SELECT count(*) FROM mine") == [(0,)]
        granted = "SELECT count(*) FROM information_schema.role_table_grants WHERE table_name = 'unsent'"
        assert hand.type(f"{granted} AND grantee = 'PUBLIC'") == [(1,)]
