"""Offers and companies are erased with all that was said in them, and do not come back, whatever is listed later."""

from __future__ import annotations

import pytest

from penstock.ledger.schema.columns import document
from penstock.lifecycles.queries.erasure.machine import E, Step
from penstock.lifecycles.queries.offer_store import company_id
from penstock.lifecycles.queries.sheet_rows import key_text
from penstock.lifecycles.queries.sheet_tables import feedback
from penstock.model.outcome import Write
from penstock.testing import KILL, Fault

NAME = "Peluquería Zoraida S.L."
SAID = ("zoraida", "alisado")
"""What only her offers say."""


def listed(at):
    """Three offers of hers, one that cannot be read, and two of somebody else."""
    for number in ("1", "2", "3"):
        at.offer(
            number,
            title=f"Alisado y corte {number}",
            company=NAME,
            city="Getafe",
            description="Zoraida busca a una persona",
            url=f"https://board.example.com/zoraida/{number}",
        )
    at.offer("4", title="Alisado urgente", company="PELUQUERIA ZORAIDA", updated_at="yesterday")
    at.offer("8", title="Python", company="Nimbus", city="Madrid")
    at.offer("9", title="Java", company="Nimbus", city="Vigo")
    at.read("offers")


def wrote(at, kind, *keys):
    """People wrote something in the spreadsheet."""
    now = at.time.now()
    rows = [{"kind": kind, "key": key, "text": "Zoraida called", "read_at": now, "changed_at": now} for key in keys]
    at.ledger.write([Write(feedback, rows)])


@pytest.mark.by_day
def test_of_a_company_nothing_is_found_any_more(at):
    listed(at)
    wrote(at, "company", company_id(NAME))
    wrote(at, "offer", key_text("board", "1"))
    assert {"offers", "companies", "rejected_records", "feedback"} <= set(at.mentions(*SAID))
    (unit,) = at.erase(f"company:{NAME}")
    assert (unit.status, unit.unit_id) == (E.DONE, f"company/-/{company_id(NAME)}")
    assert at.mentions(*SAID) == []
    columns = "title, company, company_ref, city, province, description, url, payload, likeness, content_hash"
    found = at.rows(f"SELECT {columns} FROM offers WHERE erased_at IS NOT NULL")
    assert found == [(None,) * 9 + ("erased",)] * 3
    assert at.rows("SELECT name, cities, offers_total FROM companies WHERE erased_at IS NOT NULL") == [(None, None, 3)]
    assert at.rows("SELECT count(*) FROM offers WHERE company = 'Nimbus' AND payload IS NOT NULL") == [(2,)]
    assert at.rows("SELECT count(*) FROM transition_log WHERE machine = 'query'")[0][0] > 0, "the history stays"


@pytest.mark.by_day
def test_an_erased_company_does_not_come_back(at):
    listed(at)
    at.erase(f"company:{NAME}")
    before = at.rows("SELECT offer_id, first_seen_at FROM offers WHERE erased_at IS NOT NULL ORDER BY 1")
    at.time.advance(3_600)
    at.offer("1", title="Alisado, ahora por la tarde", company=NAME, city="Getafe", description="Zoraida")
    at.offer("2", title="Alisado y corte 2", company=NAME)
    at.offer("5", title="Alisado y corte 1", company="Peluqueria Zoraida, SL", city="Getafe")
    at.offer("8", title="Alisado", company=NAME)
    at.offer("4", title="Alisado urgente", company="PELUQUERIA ZORAIDA", updated_at="tomorrow")
    at.offer("6", company={"name": NAME}, title="Alisado")
    at.read("offers")
    assert at.mentions(*SAID) == []
    after = at.rows("SELECT offer_id, first_seen_at FROM offers WHERE erased_at IS NOT NULL ORDER BY 1")
    assert [row for row in after if row[0] not in "58"] == before
    assert [row[0] for row in after] == ["1", "2", "3", "5", "8"]
    assert at.rows("SELECT link_kind FROM offers WHERE offer_id = '5'") == [(None,)]
    at.time.advance(3_600)
    at.read("offers")
    assert at.mentions(*SAID) == []


@pytest.mark.by_day
def test_of_an_offer_nothing_is_found_any_more_and_its_company_stays(at):
    listed(at)
    at.offer("9", title="Secret Java", company="Nimbus", city="Vigo", description="ask for Xiana")
    at.read("offers")
    wrote(at, "offer", key_text("board", "9"), key_text("board", "8"))
    (unit,) = at.erase("offer:board/9")
    assert (unit.status, unit.rows) == (E.DONE, 1)
    assert at.mentions("xiana", "java", "vigo") == []
    ((name, cities, total),) = at.rows("SELECT name, cities, offers_total FROM companies WHERE name = 'Nimbus'")
    cities = document(cities) if isinstance(cities, str) else cities
    assert (name, cities, total) == ("Nimbus", ["Madrid"], 2)
    assert at.rows("SELECT key, text FROM feedback ORDER BY key") == [("board/8", "Zoraida called"), ("board/9", "")]
    at.time.advance(3_600)
    at.offer("9", title="Java again", company="Nimbus", city="Vigo", description="ask for Xiana")
    at.read("offers")
    assert at.mentions("xiana", "java", "vigo") == []


def test_an_offer_that_could_never_be_used_is_erased_too(at):
    listed(at)
    (unit,) = at.erase("offer:board/4")
    assert (unit.status, unit.rows) == (E.DONE, 1)
    ((payload, reason),) = at.rows("SELECT payload, reason FROM rejected_records WHERE record_id = '4'")
    assert (payload, reason) == (None, "it was erased")
    at.offer("4", title="Alisado urgente", company="Somebody", city="Lugo")
    at.read("offers")
    assert at.mentions("urgente", "somebody", "lugo") == []
    assert at.rows("SELECT title, content_hash FROM offers WHERE offer_id = '4'") == [(None, "erased")]


def test_a_company_of_many_offers_is_erased_in_bounded_transactions(local, monkeypatch):
    monkeypatch.setattr("penstock.lifecycles.queries.erasure.rows.AT_ONCE", 2)
    monkeypatch.setattr("penstock.lifecycles.queries.erasure.rows._LOOKED_AT", 1)
    listed(local)
    local.offer("7", title="Corte", company="Nimbus", updated_at=None)
    local.read("offers")
    (unit,) = local.erase(f"company:{company_id(NAME)}")
    assert unit.status is E.DONE
    assert local.mentions(*SAID) == []
    assert local.rows("SELECT count(*) FROM rejected_records WHERE payload IS NOT NULL") == [(1,)]


def test_a_worker_killed_anywhere_leaves_nothing_behind(at):
    listed(at)
    steps = (Step.MARK, Step.SET_ASIDE, Step.ROWS, Step.COMPANIES)
    faults = [Fault(step, KILL, after=after) for step in steps for after in (False, True)]
    (unit,) = at.erase(f"company:{NAME}", faults=faults)
    assert unit.status is E.DONE
    assert at.mentions(*SAID) == []
    assert at.rows("SELECT count(*) FROM offers WHERE erased_at IS NOT NULL") == [(3,)]
