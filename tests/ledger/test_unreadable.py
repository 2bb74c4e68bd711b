"""Values that somebody's SQL leaves in a row and Python cannot read: refused by a CHECK, or parked with the reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from penstock.ledger.commit import Refused, Won
from penstock.ledger.schema.columns import document, unit_decoder
from penstock.model.errors import LedgerRefused
from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, field_types, replace
from tests.support.crash_app import Job
from tests.support.more_machines import PARCEL, Parcel, ParcelState, parcel
from tests.support.probe import Probe, work
from tests.support.world import ids

GOOD, BAD = Ref("parcel", "good"), Ref("parcel", "bad")
LONG_NUMBER = "[" + "9" * 5_000 + "]"
UNREADABLE = [
    ("sqlite", "price = 'a lot'"),
    ("sqlite", "token = 'not a token'"),
    ("sqlite", f"facts = '{LONG_NUMBER}'"),
    ("postgres", f"tags = '{LONG_NUMBER}'"),
]
unreadable = pytest.mark.parametrize(
    ("world_url", "typed"), UNREADABLE, indirect=["world_url"], ids=[f"{u}-{t[:12]}" for u, t in UNREADABLE]
)


class Parcels(Probe):
    machine = PARCEL


def spoilt(world: Any, typed: str) -> None:
    world.sql(f"UPDATE parcel SET {typed} WHERE name = 'bad'")


def unguarded(world: Any) -> None:
    """Somebody took the trigger away that would take a spoilt unit from whoever holds it."""
    world.sql("DROP TRIGGER penstock_parcel_history" + ("" if world.sqlite else " ON parcel"))


def parked(world: Any) -> tuple[Any, ...]:
    (row,) = world.rows(
        "SELECT parked_at IS NOT NULL, parked_reason, claimed_by, crashes FROM parcel WHERE name = 'bad'"
    )
    return row


@unreadable
def test_a_row_that_cannot_be_read_is_parked_and_the_others_are_claimed(world, typed):
    world.born(parcel("bad"), parcel("good"))
    spoilt(world, typed)
    worker = world.worker()
    assert ids(worker.claim({"parcel": 5})) == ["good"]
    found = parked(world)
    assert found[1].startswith("a column cannot be read: ")
    assert (bool(found[0]), found[2], found[3]) == (True, None, 1)
    ((kind, severity, unit_id),) = world.rows("SELECT event_type, severity, unit_id FROM event_log")
    assert (kind, severity, unit_id) == ("unit.parked", "critical", "bad")
    assert worker.claim({"parcel": 5}) == []


@unreadable
def test_a_worker_lives_on_beside_a_row_that_cannot_be_read(world, typed):
    world.born(parcel("bad"), parcel("good"))
    spoilt(world, typed)

    async def act(unit: Any, io: Any) -> Any:
        return Outcome(unit, replace(unit, status=ParcelState.CLOSED, due_at=None), "closed")

    flow = Parcels(act)
    work(world, flow, seconds=5)
    assert [name for name, _ in flow.acted] == ["good"]
    assert world.unit(GOOD).status is ParcelState.CLOSED
    assert parked(world)[1] is not None


@unreadable
def test_a_row_that_cannot_be_read_is_parked_when_it_is_recovered(world, typed):
    world.born(parcel("bad"), parcel("good"))
    worker = world.worker()
    worker.claim({"parcel": 5})  # nobody hears of it
    unguarded(world)
    spoilt(world, typed)
    assert ids(worker.recover(set())) == ["good"]
    assert parked(world)[2:] == (None, 1)


@unreadable
def test_a_row_that_was_spoilt_under_its_claim_refuses_what_would_read_it(world, typed):
    world.born(parcel("bad"), parcel("good"))
    worker = world.worker()
    bad, good = worker.claim({"parcel": 5})
    unguarded(world)
    spoilt(world, typed)
    refused, won = world.commit(
        worker, *(Outcome(u, replace(u, note="begun"), "intent", keep_claim=True) for u in (bad, good))
    )
    assert isinstance(refused, Refused)
    assert isinstance(won, Won)
    assert won.unit.note == "begun"
    assert world.commit(worker, Outcome(bad, replace(bad, crashes=1), "its step crashed")) == [Won()]
    assert worker.claim({"parcel": 5}) == []
    assert parked(world)[1].startswith("a column cannot be read: ")


def test_a_document_of_another_kind_is_read_as_it_is(world):
    world.born(parcel("good"))
    world.sql("UPDATE parcel SET tags = '{\"a\": 1}', facts = '\"a word\"'")
    (unit,) = world.worker().claim({"parcel": 1})
    assert (unit.facts, unit.tags) == ("a word", {"a": 1})


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_a_document_that_is_too_deep_is_as_unreadable_as_any(dialect):
    deep = "[" * 200_000 + "]" * 200_000
    values = dict.fromkeys(field_types(Parcel)) | {"tags": document(deep) if dialect == "postgresql" else deep}
    with pytest.raises(ValueError, match="nested too deeply"):
        unit_decoder(Parcel, dialect)([*values.values()])


def test_a_decoder_is_made_once_for_each_type_and_database():
    assert unit_decoder(Job, "sqlite") is unit_decoder(Job, "sqlite")
    assert unit_decoder(Job, "sqlite") is not unit_decoder(Job, "postgresql")


def test_a_value_outside_its_enum_is_read_as_it_is():
    values = dict.fromkeys(field_types(Job)) | {"status": "asleep", "kind": "odd"}
    job = unit_decoder(Job, "sqlite")([*values.values()])
    assert (job.status, job.kind) == ("asleep", "odd")


MOMENTS = ["infinity", "-infinity", "10000-01-01 00:00:00+00", "0044-03-15 00:00:00+00 BC"]


@pytest.mark.parametrize("column", ["next_refresh_at", "changed_at", "parked_at", "closed_until"])
def test_a_moment_that_python_does_not_know_is_refused(postgres_hand, column):
    postgres_hand.type("INSERT INTO gate (gate_id) VALUES ('api')")
    postgres_hand.type("INSERT INTO feeds (unit_id, feed_id, status, url) VALUES ('news', 'news', 'missing', '')")
    table, where = ("gate", "gate_id = 'api'") if column == "closed_until" else ("feeds", "true")
    for moment in MOMENTS:
        message = postgres_hand.refused(f"UPDATE {table} SET {column} = '{moment}' WHERE {where}")
        assert f"{table}_{column}_is_instant" in message


@pytest.mark.parametrize("world_url", ["postgres"], indirect=True)
def test_a_day_that_python_does_not_know_is_refused(world):
    world.born(parcel("good"))
    for day in ("infinity", "-infinity", "10000-01-01", "0044-03-15 BC"):
        with pytest.raises(LedgerRefused, match="day_is_date"):
            world.sql(f"UPDATE parcel SET day = '{day}'")


def test_the_first_and_the_last_moment_are_kept(world):
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    refs = world.born(*(parcel(n, at=m, day=m.date()) for n, m in (("first", first), ("last", last))))
    assert [world.unit(r).at for r in refs] == [first, last]
    assert [world.unit(r).day for r in refs] == [first.date(), last.date()]


@pytest.mark.parametrize("column", ["day", "due_at"])
def test_a_day_that_no_calendar_has_is_refused(world, column):
    (ref,) = world.born(parcel("good"))
    before = world.unit(ref)
    for day in ("2026-02-30", "2025-02-29", "2026-13-01", "2026-00-10", "2026-01-32", "0000-01-01"):
        typed = day if column == "day" else f"{day}T00:00:00.000Z"
        with pytest.raises(LedgerRefused):
            world.sql(f"UPDATE parcel SET {column} = '{typed}'")
    assert world.unit(ref) == before


@pytest.mark.parametrize("world_url", ["sqlite"], indirect=True)
def test_an_hour_that_no_clock_shows_is_refused(world):
    world.born(parcel("good"))
    for hour in ("24:00:00.000", "12:60:00.000", "12:00:60.000"):
        with pytest.raises(LedgerRefused, match="due_at_is_instant"):
            world.sql(f"UPDATE parcel SET due_at = '2099-01-01T{hour}Z'")


@pytest.mark.parametrize("world_url", ["sqlite"], indirect=True)
def test_text_that_is_no_text_stops_nobody(world):
    world.born(parcel("bad"), parcel("good"))
    spoilt(world, "note = CAST(x'68ff69' AS TEXT)")
    units = world.worker().claim({"parcel": 5})
    assert [u.note for u in units] == ["h\N{REPLACEMENT CHARACTER}i", None]
