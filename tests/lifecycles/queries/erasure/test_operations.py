"""What people ask to be erased: shown before it happens, refused where nothing is known of it, and told afterwards."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from penstock.lifecycles.queries import lifecycle
from penstock.lifecycles.queries.erasure import operations
from penstock.lifecycles.queries.erasure.decide import decide
from penstock.lifecycles.queries.erasure.machine import ANY_CLIENT, E, Erasure, Kind, erasure
from penstock.lifecycles.queries.jobs import keep_queries
from penstock.lifecycles.queries.lock import holder
from penstock.lifecycles.queries.offer_store import company_id
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Wait
from penstock.model.unit import NO_GATE, Ref, unit_id_of
from penstock.operations.declare import Role
from penstock.testing import check_hands
from tests.support.erasing import START


def listed(at):
    at.offer("1", title="Python", company="Zoraida Pérez", city="Vigo")
    at.offer("2", title="Java", company="Zoraida Pérez", city="Vigo")
    at.offer("3", title="Rust", company="Zorbas", updated_at=None)
    at.person(7, full_name="Ximena Ortiz")
    at.read("offers", "people")


def refused(at, match, *keys, reason="request 17"):
    with pytest.raises(UsageError, match=match):
        at.plan(*keys, reason=reason)


def test_the_declaration_is_light():
    """Help reads it: no database driver, no client, no event loop."""
    heavy = ("sqlalchemy", "psycopg", "pysqlite3", "aiohttp", "asyncio", "rich", "structlog")
    code = f"import sys, penstock.lifecycles.queries; print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_it_is_for_administrators_and_by_hand_only_what_has_ended_is_moved():
    assert operations.erase.role is Role.ADMIN
    assert operations.erase.wants_reason
    assert {"erase", "erasures"} <= {one.name for one in (*lifecycle.operations, *lifecycle.readings)}
    assert check_hands(erasure) > 0


@pytest.mark.by_day
def test_a_plan_says_what_will_be_erased_and_by_no_name(at):
    listed(at)
    key = company_id("Zoraida Pérez")
    shown = at.plan("company:zoraida perez", "offer:board/1", "record:staff/7").preview
    assert shown.says == f"erase company {key} (3 rows), offer board/1 (1 row), record staff/7 (2 rows)"
    assert shown.warnings[:2] == [
        "This cannot be undone.",
        "Rows that are blanked: 1 of companies, 3 of offers, 2 of people; and what people wrote beside them.",
    ]
    ((pages,),) = at.rows("SELECT count(*) FROM landed_pages")
    assert f"{pages} landed pages are looked through" in shown.warnings[2]
    assert "Zoraida" not in str(shown)


@pytest.mark.by_day
def test_what_nothing_is_known_of_is_refused(at):
    listed(at)
    refused(at, "names nothing that can be erased; write offer:CLIENT/ID", "person:7")
    refused(at, "names nothing that can be erased", "company:")
    refused(at, "has no client and id; write offer:CLIENT/ID", "offer:board")
    refused(at, "there is no client 'bored'; there are: board, staff", "offer:bored/1")
    refused(at, "board has no offer '99'; give the id as the provider has it", "offer:board/99")
    refused(at, "staff has no record '99'.*people.record_id", "record:staff/99")
    refused(at, "have a table of their own; write record:staff/7", "offer:staff/7")
    refused(at, "board lists offers; write offer:board/1", "record:board/1")
    refused(at, "no client 'gone' with a table of its own is configured", "record:gone/1")
    refused(at, r"similar: Zoraida Pérez \(company:[0-9a-f]{16}\)", "company:zoraida")
    refused(at, "no company is known as '100%_!'; give its name as an offer has it", "company:100%_!")
    refused(at, "name what is to be erased")


def test_a_reason_that_repeats_a_name_is_refused(at):
    listed(at)
    for reason in ("ZORAIDA  PÉREZ asked for it", "asked for by Zoraida Pérez."):
        refused(at, "the history keeps it", "company:Zoraida Pérez", reason=reason)
        refused(at, "the history keeps it", "offer:board/1", reason=reason)
    refused(at, "the history keeps it", "record:staff/7", reason="for Ximena Ortiz")
    refused(at, "needs a reason", "record:staff/7", reason=" ")
    assert at.plan("offer:board/1", reason="the pythonic request").preview.count == 1


def test_what_was_erased_is_told_and_may_be_erased_again(at):
    listed(at)
    at.want("offer:board/1")
    refused(at, "being erased already", "offer:board/1")
    (row,) = operations.erasures(at.ask()).rows
    assert (row.erased, row.status, row.asked_by, row.reason) == ("offer:board/1", E.WANTED, "ada", "request 17")
    at.work()
    at.time.advance(60)
    (second, first) = at.erase("offer:board/1", f"company:{company_id('Zoraida Pérez')}")
    assert {first.status, second.status} == {E.DONE}
    rows = operations.erasures(at.ask(), operations.ErasuresFilter(status=E.DONE)).rows
    assert {(row.erased, row.reason) for row in rows} == {
        ("offer:board/1", "request 17"),
        (f"company:{company_id('Zoraida Pérez')}", "request 17"),
    }
    assert all(row.erased_at is not None for row in rows)
    assert operations.erasures(at.ask(), operations.ErasuresFilter(status=E.FAILED)).rows == []
    sql = "SELECT from_status, to_status, actor FROM transition_log WHERE machine = 'erasure' AND unit_id = :unit"
    moves = at.rows(f"{sql} ORDER BY seq", unit=first.unit_id)
    assert [(before, after) for before, after, _ in moves] == [
        (None, "wanted"),
        *[("wanted", "erasing"), ("erasing", "done"), ("done", "wanted")],
        *[("wanted", "erasing"), ("erasing", "done")],
    ]
    assert moves[0][2] == moves[3][2] == "operator:ada"


@pytest.mark.by_day
def test_nothing_is_erased_while_a_query_runs_and_no_query_runs_meanwhile(at):
    listed(at)
    at.want("offer:board/1")
    keep_queries(at.ledger, at.settings, at.time.now(), "test")
    at.time.advance(7_200)
    worker = at.ledger.incarnation(served=["query", "erasure"])
    worker.register()
    (held,) = worker.claim({"query": 1, "erasure": 1})
    assert worker.claim({"query": 1, "erasure": 1}) == []
    lock = at.ledger.read(holder)
    assert lock is not None
    assert lock.query_key in {held.unit_id, f"erasure {held.unit_id}"}


def test_an_erasure_waits_for_the_settings_of_its_client():
    unit = Erasure(status=E.ERASING, kind=Kind.RECORD, client="gone", record="1", asked_by="ada", asked_at=START)
    found = decide(unit, START, QueriesSettings(), None)
    assert isinstance(found, Wait)
    assert found.until == START + timedelta(minutes=5)
    assert "[queries.rest_json.gone] is not configured" in found.reason


def test_a_unit_is_named_by_what_stays_anyway():
    key = company_id("Zoraida")
    unit = Erasure(kind=Kind.COMPANY, client=ANY_CLIENT, record=str(key), asked_by="ada", asked_at=START)
    assert unit_id_of(unit) == f"company/-/{key}"
    assert (unit.gate_id, RUN_GATE) == (NO_GATE, "queries/run")
    assert Ref.parse(f"erasure:{unit_id_of(unit)}").machine == erasure.name
    assert set(erasure.born_by["wanted"]) == {Actor.OPERATOR, Actor.API}
