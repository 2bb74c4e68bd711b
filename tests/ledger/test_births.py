"""Births by the set: the same guards and the same history as for any birth."""

from __future__ import annotations

from datetime import date

import pytest

from penstock.ledger.births import Product, Side, birth_products
from penstock.ledger.care.doctor import examine
from penstock.model.errors import BrokenFlow, IllegalMove, LedgerRefused
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.model.unit import Ref, replace
from tests.support.machines import DUE, INVOICE, PARTITION, InvoiceState, PartitionState, invoice, partition
from tests.support.more_machines import DATA_TABLES

TENANTS = Side([{"tenant": name, "gate_id": f"shop/{n}"} for n, name in enumerate(("acme", "a/b%c", "é"))])
NUMBERS = Side([{"number": str(n), "amount_minor": n} for n in range(4)])
ACME = Side([{"tenant": "acme"}])


def bear(world, product, **options):
    return birth_products(world.ledger, [product], actor=Actor.SCHEDULER, who="test", reason="wanted", **options)


def test_every_one_of_these_with_every_one_of_those(world):
    assert bear(world, Product(INVOICE, invoice(), TENANTS, NUMBERS)) == 12
    found = world.unit(Ref("invoice", "a%2Fb%25c/3"))
    assert (found.tenant, found.number, found.amount_minor, found.due_at) == ("a/b%c", "3", 3, DUE)
    assert (found.status, found.gate_id, found.changed_by) == (InvoiceState.QUEUED, "shop/1", "scheduler:test")
    assert world.history(Ref("invoice", "acme/0")) == [(None, "QUEUED", "scheduler:test", "wanted")]
    assert not examine(world.ledger.database, world.ledger.machines)
    session = world.worker("invoice")
    assert len(session.claim({"invoice": 100})) == 12


def test_those_that_are_there_are_left_as_they_are(world):
    world.born(invoice("2", tenant="acme", amount_minor=99))
    assert bear(world, Product(INVOICE, invoice(), TENANTS, NUMBERS)) == 11
    assert world.unit(Ref("invoice", "acme/2")).amount_minor == 99
    assert bear(world, Product(INVOICE, invoice(), TENANTS, NUMBERS)) == 0
    assert bear(world, Product(INVOICE, invoice(), Side([]), NUMBERS)) == 0


def test_a_guarded_machine_with_a_date_in_its_key(world):
    days = [{"logical_date": date(2026, 11, n)} for n in (1, 2)]
    assert bear(world, Product(PARTITION, partition(), Side([{"source": "ads"}]), Side(days))) == 2
    assert world.unit(Ref("partition", "ads/2026-11-02")).logical_date == date(2026, 11, 2)


@pytest.mark.parametrize(
    ("like", "these", "those", "said"),
    [
        (invoice(), TENANTS, Side([{"number": "1", "status": "SENT"}]), "units of a product take their state"),
        (invoice(), ACME, Side([{"amount_minor": 1}]), "do not make up its key"),
        (invoice(), ACME, Side([{"number": "1", "tenant": "b"}]), "name a column twice"),
        (invoice(), ACME, Side([{"number": "1", "nonsense": 1}]), "do not make up its key"),
        (invoice(), ACME, Side([{"number": "1", "changed_by": "api:x"}]), "a product cannot set changed_by"),
        (invoice(), ACME, Side([{"number": "1", "version": 1, "wakes": 1}]), "cannot set version, wakes"),
    ],
)
def test_what_makes_no_units_is_refused(world, like, these, those, said):
    with pytest.raises(BrokenFlow, match=said):
        bear(world, Product(INVOICE, like, these, those))
    assert world.one("SELECT count(*) FROM invoice") == 0


def test_a_product_is_born_by_those_who_may(world):
    days = [{"logical_date": date(2026, 11, n)} for n in (1, 2)]
    sold = Product(PARTITION, partition(status=PartitionState.SUCCESS), Side([{"source": "ads"}]), Side(days))
    with pytest.raises(IllegalMove, match="only validator may create a unit as success, not api"):
        birth_products(world.ledger, [sold], actor=Actor.API, who="t")
    with pytest.raises(IllegalMove, match="cannot be born as SENT"):
        bear(world, Product(INVOICE, replace(invoice(), status=InvoiceState.SENT), TENANTS, NUMBERS))
    assert birth_products(world.ledger, [sold], actor=Actor.VALIDATOR, who="t") == 2


def test_a_product_is_nobodys_whatever_it_was_copied_from(world):
    like = replace(invoice(), claimed_by="ghost", crashes=2, wakes=7, version=5, changed_by="validator:v")
    assert bear(world, Product(INVOICE, like, ACME, Side([{"number": "1"}]))) == 1
    found = world.unit(Ref("invoice", "acme/1"))
    assert (found.claimed_by, found.crashes, found.wakes, found.changed_by) == (None, 0, 0, "scheduler:test")


def test_rows_of_different_columns_are_refused():
    with pytest.raises(BrokenFlow, match="the same columns"):
        Side([{"tenant": "acme"}, {"number": "1"}])


def test_rows_ride_in_the_same_transaction(world):
    table = DATA_TABLES[0]
    with pytest.raises((LedgerRefused, BrokenFlow)):
        bear(world, Product(INVOICE, invoice(), TENANTS, NUMBERS), writes=[Write(table, [{"no_such_column": 1}])])
    assert world.one("SELECT count(*) FROM invoice") == 0
