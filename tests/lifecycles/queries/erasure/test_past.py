"""What had been erased at a moment: as it was said then, or not known any more."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock.lifecycles.queries import readings
from penstock.lifecycles.queries.erasure import operations
from penstock.lifecycles.queries.erasure.flow import Erasures
from penstock.lifecycles.queries.erasure.machine import E, Erasure
from penstock.model.outcome import Outcome
from penstock.testing import work_until_idle
from tests.support.erasing import START, Site
from tests.support.past import Record

pytestmark = pytest.mark.by_day
SECOND = timedelta(seconds=1)


def ask(at: Site, reading: Any, moment: datetime | None = None, **wanted: Any) -> Any:
    return reading(at.ask(), reading.parameters(at=moment, **wanted))


def test_what_was_said_at_a_moment_is_said_of_it_later(at: Site) -> None:
    site = at
    told = Record(
        {
            "all": lambda *, at: ask(site, operations.erasures, at),
            "done": lambda *, at: ask(site, operations.erasures, at, status=E.DONE),
            "wanted": lambda *, at: ask(site, operations.erasures, at, status=E.WANTED),
        },
        frozenset({"erased", "status", "asked_by"}),
    )

    def look() -> None:
        """Nothing else happens in the moment that is asked for."""
        at.time.advance(1)
        told.write(at.time.now())
        at.time.advance(1)

    class Watched(Erasures):
        def committed(self, outcome: Outcome[Erasure]) -> None:
            super().committed(outcome)
            look()

    def erase(*keys: str) -> None:
        at.want(*keys)
        look()
        work_until_idle(at.ledger, [Watched(at.settings, lambda: at.raw)], within=timedelta(hours=1))
        look()

    at.offer("1", title="Python", company="Zoraida", city="Vigo")
    at.offer("2", title="Java", company="Zoraida", city="Vigo")
    at.person(7, full_name="Ximena Ortiz")
    look()
    at.read("offers", "people")
    erase("record:staff/7")
    erase("company:Zoraida")
    early = at.time.now() - SECOND / 2
    erase("company:Zoraida")  # once more
    states = {row["status"] for _, name, page in told.answers if name == "all" for row in page["rows"]}
    assert states == {"wanted", "erasing", "done"}
    assert told.differences() == []
    assert {
        "all.rows.rows",
        "all.rows.pages",
        "all.rows.erased_at",
        "all.rows.asked_at",
        "all.rows.reason",
    } <= told.known
    assert {path.rpartition(".")[2] for path in told.unknown} == {"rows", "pages", "reason", "asked_at", "erased_at"}
    (again, once) = sorted(ask(at, operations.erasures, early).rows, key=lambda row: row.asked_at is not None)
    assert (again.status, again.asked_by, again.asked_at, again.erased_at, again.rows) == (
        E.DONE,
        "ada",
        None,
        None,
        None,
    )
    assert (again.reason, once.reason) == ("request 17", "request 17")
    assert once == next(row for row in ask(at, operations.erasures).rows if row.erased == once.erased)
    assert ask(at, operations.erasures, START).note == "nothing was ever erased"


def test_a_record_that_was_erased_since_says_nothing_of_then(at):
    at.person(7, full_name="Ximena Ortiz")
    at.api.lists["/people"][8] = {"id": 8, "full_name": "Ana"}  # without a date
    at.read("people")
    before = at.time.now()
    (told,) = ask(at, readings.rejected, query="people").rows
    at.time.advance(60)
    at.erase("record:staff/8")
    (then,) = ask(at, readings.rejected, before, query="people").rows
    assert (told.record, told.reason is None, told.payload is None) == ("8", False, False)
    assert (then.record, then.reason, then.payload) == ("8", None, None)
    assert then.first_seen_at == told.first_seen_at
