"""Records with a table of their own are erased from it and from all landed pages, which copies without them replace."""

from __future__ import annotations

import json
import os
import shutil
from datetime import timedelta

import pytest

from penstock.connectors.rest_json.mapping import Mapper
from penstock.lifecycles.queries.erasure.guard import erased_line, is_erased_line
from penstock.lifecycles.queries.erasure.machine import E, Step
from penstock.lifecycles.queries.erasure.pages import Record, copy, remove
from penstock.lifecycles.queries.landing import land
from penstock.lifecycles.queries.registry import registry
from penstock.raw.paths import PartitionKey
from penstock.raw.sink import RawSink
from penstock.raw.store import RawUnavailable
from penstock.testing import KILL, Fault
from tests.support.erasing import START, settings_of

SAID = ("ximena", "1984-05-06", "allergic")
"""What only her record says."""


def listed(at):
    """Two people, read twice by one query and once by another, and a record that cannot be used."""
    at.person(7, full_name="Ximena Ortiz", born="1984-05-06", notes={"health": "allergic"}, score=7)
    at.person(17, full_name="Bruno", born="1990-01-01", notes=[7], score=1.5)
    at.person(99, full_name="Ximena again", born="no day")
    at.read("people", "others")
    at.time.advance(3_600)
    at.person(7, full_name="Ximena Ortiz Vega", born="1984-05-06", notes={"health": "allergic"}, score=8)
    at.read("people")
    at.api.lists["/people"].pop(99)


def lines(at):
    """Every landed line, by run."""
    return {
        (str(key), run): [json.loads(line) for line in at.raw.open_partition(key, run).lines()]
        for key, run in at.raw.list_partitions()
    }


def counting(at):
    return sorted(at.rows("SELECT partition, raw_run_id FROM landed_pages WHERE replaced_by IS NULL"))


def is_clean(at, unit):
    """She is nowhere; everybody else is where he was, once."""
    assert (unit.status, unit.leaving) == (E.DONE, None)
    assert at.mentions(*SAID) == []
    found = at.rows("SELECT full_name, born, notes, score, payload, content_hash FROM people WHERE record_id = '7'")
    assert found == [(None, None, None, None, None, "erased")] * 2
    assert at.rows("SELECT count(*) FROM people WHERE full_name = 'Bruno' AND payload IS NOT NULL") == [(2,)]
    pages = lines(at)
    assert sorted(pages) == counting(at)
    records = [record for page in pages.values() for record in page]
    assert len(records) == sum(is_erased_line(one) + (one.get("full_name") == "Bruno") for one in records) == 8


@pytest.mark.by_day
def test_of_a_record_nothing_is_found_any_more(at):
    listed(at)
    before = counting(at)
    assert {"people", "rejected_records"} <= set(at.mentions(*SAID))
    at.erase("record:staff/99")
    (_, unit) = at.erase("record:staff/7")
    is_clean(at, unit)
    assert (unit.pages_seen, unit.pages_replaced, unit.rows) == (4, 4, 2)
    replaced = at.rows("SELECT partition, raw_run_id FROM landed_pages WHERE replaced_by IS NOT NULL")
    assert sorted(replaced) == before
    for partition, run in counting(at):
        said = at.raw.find(PartitionKey.parse(partition), run)
        assert said is not None
        assert said.facts["erasure"] == "record/staff/7"
        assert (partition, said.facts["replaces"]) in before


@pytest.mark.by_day
def test_an_erased_record_does_not_come_back(at):
    listed(at)
    at.erase("record:staff/7", "record:staff/99")
    at.time.advance(3_600)
    at.person(7, full_name="Ximena Ortiz", born="1984-05-06", notes="allergic", score=9)
    at.person(99, full_name="Ximena", born="1984-05-06", score=9)
    at.read()
    at.time.advance(3_600)
    at.person(7, full_name="Ximena Ortiz", born="never", notes="allergic")
    at.read()
    assert at.mentions(*SAID) == []
    assert at.rows("SELECT count(*) FROM people WHERE record_id = '99' AND erased_at IS NOT NULL") == [(2,)]
    assert counting(at) == sorted(lines(at))


def test_a_worker_killed_anywhere_leaves_the_copies_alone(at):
    listed(at)
    at.erase("record:staff/99")
    steps = (*(Step.MARK, Step.SET_ASIDE, Step.ROWS, Step.PAGES), "remove", Step.LEFTOVERS)
    faults = [Fault(step, KILL, after=after) for step in steps for after in (False, True)]
    (_, unit) = at.erase("record:staff/7", faults=faults)
    is_clean(at, unit)


def test_what_crashes_left_in_the_sink_goes_too(at):
    listed(at)
    at.erase("record:staff/99")
    key = next(own.key for own in registry(at.settings).values() if own.name == "people")
    line = [json.dumps({"id": 7, "full_name": "Ximena"}).encode()]
    never_counted = PartitionKey("staff", key, "people", START.date())
    land(at.raw, never_counted, line, START + timedelta(days=1))
    foreign = PartitionKey("staff", "another lifecycle's", "people", START.date())
    land(at.raw, foreign, line, START)
    (page,) = {path.parent for path in at.folder.rglob("*") if path.match("customer_id=another*/*/*/*/payload.jsonl")}
    attempt = at.folder / next(path.parent.parent for path in at.folder.rglob(f"*{key}*/*/*/*/payload.jsonl"))
    left = attempt / ".writing-left"
    shutil.copytree(page, left)
    for path in (left, *left.iterdir()):
        os.utime(path, (0, 0))
    (_, unit) = at.erase("record:staff/7")
    assert not left.exists()
    assert at.mentions(*SAID) == [str((page / "payload.jsonl").relative_to(at.folder))], "that is none of ours"
    shutil.rmtree(page.parents[2])
    is_clean(at, unit)


def test_pages_are_looked_through_in_bounded_steps(local, monkeypatch):
    monkeypatch.setattr("penstock.lifecycles.queries.erasure.pages.AT_ONCE", 1)
    listed(local)
    local.erase("record:staff/99")
    (_, unit) = local.erase("record:staff/7")
    is_clean(local, unit)
    assert (unit.pages_seen, unit.pages_replaced) == (8, 4), "each page, and each copy of one"


def test_a_sink_that_is_away_is_waited_for_and_a_broken_page_is_told(local, monkeypatch):
    listed(local)
    local.want("record:staff/7", "record:staff/99")
    find, calls = local.raw.open_partition, []

    def away(key, run_id):
        calls.append(run_id)
        if len(calls) == 1:
            raise RawUnavailable("the disk is away")
        return find(key, run_id)

    monkeypatch.setattr(local.raw, "open_partition", away)
    assert {unit.status for unit in local.work()} == {E.DONE}
    assert local.mentions(*SAID) == []
    (payload, *_) = sorted(local.folder.rglob("payload.jsonl"))
    payload.chmod(0o600)
    payload.write_bytes(b"{}\n")
    failed = [one for one in local.erase("record:staff/17") if one.status is E.FAILED]
    assert [one.record for one in failed] == ["17"]
    assert "bytes; " in str(failed[0].change_reason)
    assert local.mentions("bruno") != []


def test_a_line_is_the_records_by_its_id_alone():
    own = settings_of().rest_json["staff"]
    record = Record(Mapper(own), "7")
    assert record.blanked(b'{"id":"17","updated_at":"2026-01-01"}') is None
    assert record.blanked(b'{"id":17,"friend":7}') is None
    blank = record.blanked(b'{"id":7,"updated_at":"2026-01-01T00:00:00Z","full_name":"Ximena"}')
    assert json.loads(blank or b"") == {"id": "7", "date": "2026-01-01T00:00:00.000Z", "erased": True}
    assert record.blanked(blank or b"") is None
    assert json.loads(record.blanked(b'{"id":"7","erased":true}') or b"")["date"] is None
    assert is_erased_line(json.loads(erased_line("7", None)))
    assert not is_erased_line({"id": "7", "date": None, "erased": "yes"})


@pytest.mark.parametrize("where", ["folder", "memory://"])
def test_a_copy_is_written_once_and_never_taken_for_another(where, tmp_path):
    raw = RawSink(tmp_path if where == "folder" else where)
    key = PartitionKey("staff", "q", "people", START.date())
    rows = [json.dumps({"id": number, "updated_at": "2026-01-01"}).encode() for number in (7, 8)]
    run = land(raw, key, rows, START)
    mapper = Mapper(settings_of().rest_json["staff"])
    first = copy(raw, (key, run), Record(mapper, "7"), "record/staff/7", START)
    assert copy(raw, (key, run), Record(mapper, "7"), "record/staff/7", START) == first
    second = copy(raw, (key, run), Record(mapper, "8"), "record/staff/8", START)
    assert len({run, first, second}) == 3
    assert [is_erased_line(json.loads(line)) for line in raw.open_partition(key, second).lines()] == [False, True]
    for _ in range(2):
        remove(raw, [[str(key), run], [str(key), first]])
        assert raw.runs(key) == [second]
