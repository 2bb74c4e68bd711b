"""Records with a shape of their own: a table that the configuration declares, and the raw sink."""

from __future__ import annotations

import json

import pytest

from penstock.connectors.searches import Bad, Item
from penstock.lifecycles.queries.keep import held
from penstock.lifecycles.queries.landing import LandedSource
from penstock.lifecycles.queries.own_store import OwnStore
from penstock.lifecycles.queries.tables import own_table
from penstock.raw.paths import PartitionKey
from penstock.raw.sink import RawSink
from tests.support.queries import DAY, HOUR, START, Lists, bench

FIELDS = {
    "title": "text",
    "stars": "integer",
    "score": "number",
    "tags": "json",
    "fork": "boolean",
    "pushed": "instant",
}
TABLE = own_table("repositories", FIELDS)


def _record(number: int, at=START, stars: int = 1) -> Item:
    values = (f"r{number}", stars, 0.5, ["a", "b"], False, at)
    return Item(str(number), at, values, json.dumps({"id": number, "stars": stars}))


class _Own(Lists):
    columns = tuple(FIELDS)


@pytest.fixture
def site(ledger_url, tmp_path):
    client, raw = _Own([_record(number, START - number * HOUR) for number in range(30)]), RawSink(tmp_path / "raw")
    source = LandedSource("jobs", client, OwnStore(TABLE, list(FIELDS)), raw)
    with bench(ledger_url, client, sources={"jobs": source}, tables=[TABLE]) as world:
        yield world, client, raw


@pytest.mark.by_day
def test_records_go_to_their_table_and_pages_to_the_raw_sink(site):
    world, _, raw = site
    world.work()
    assert world.runs("jobs", "status, new, companies_aggregated") == [("SUCCESS", 30, 0)]
    assert world.value("SELECT count(*) FROM repositories WHERE stars = 1 AND title LIKE 'r%'") == 30
    assert world.offers() == []
    pages = world.rows("SELECT partition, raw_run_id, records FROM landed_pages ORDER BY raw_run_id")
    key = PartitionKey("jobs", world.own("jobs").key, "jobs", START.date())
    assert {row[0] for row in pages} == {str(key)}
    assert held(world.ledger, [key])[key].referenced == {row[1] for row in pages}
    lines = [json.loads(line) for row in pages for line in raw.open_partition(key, row[1]).lines()]
    assert {line["id"] for line in lines} == {*range(30)}
    assert len(lines) == sum(row[2] for row in pages)


def test_a_changed_record_is_updated_and_the_same_again_is_not(site):
    world, client, _ = site
    world.work()
    client.records[0] = _record(0, START + HOUR, stars=7)
    world.later()
    assert world.runs("jobs", "new, changed")[-1] == (0, 1)
    assert world.rows("SELECT stars FROM repositories WHERE record_id = '0'") == [(7,)]
    world.later()
    assert world.runs("jobs", "new, changed")[-1] == (0, 0)


def test_what_is_no_longer_listed_is_gone_and_comes_back(site):
    world, client, _ = site
    world.work()
    gone = client.records.pop(4)
    client.records[8] = Bad("no date", "{}", client.records[8].id, client.records[8].at)
    world.later(7 * DAY)
    world.later()
    assert world.rows("SELECT record_id FROM repositories WHERE gone_at IS NOT NULL") == [(gone.id,)]
    assert world.runs("jobs", "closed")[-1] == (1,)
    client.records.insert(4, gone)
    world.later(7 * DAY)
    assert world.rows("SELECT record_id FROM repositories WHERE gone_at IS NOT NULL") == []


def test_a_page_that_cannot_be_landed_ends_the_run_and_is_read_again(site, tmp_path):
    world, _, _ = site
    (tmp_path / "raw").write_text("a file where a folder should be")
    world.work()
    ((status, stop, error, new),) = world.runs("jobs", "status, stopped_by, error, new")
    assert (status, stop, new) == ("ERROR", "error", 0)
    assert error.startswith("a page could not be landed: ")
    (tmp_path / "raw").unlink()
    world.later()
    assert world.runs("jobs", "status, new")[-1] == ("SUCCESS", 30)
