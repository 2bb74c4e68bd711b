"""The configurations that docs/rest-json.md shows: each is read as it is, and shapes answers like the real ones."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from starlette.types import Receive, Scope, Send

from penstock.connectors.http.in_process import InProcess
from penstock.connectors.rest_json.client import RestJson
from penstock.connectors.searches import Batch, Item, Wanted
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.clock import VirtualClock
from penstock.settings.reader import read_section

PAGE = Path(__file__).parents[2] / "docs" / "rest-json.md"
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ISSUE = {
    "id": 2_000_000_001,
    "number": 130_001,
    "title": "A crash",
    "state": "open",
    "user": {"login": "octocat", "id": 1},
    "labels": [{"name": "type-bug"}],
    "comments": 3,
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-03T09:00:00Z",
    "closed_at": None,
}
HIT = {
    "objectID": "40000001",
    "title": "Postgres does it",
    "url": None,
    "author": "pg",
    "points": 12,
    "created_at": "2026-01-03T09:00:00Z",
    "created_at_i": 1_767_430_800,
}
QUAKE = {
    "type": "Feature",
    "id": "us7000abcd",
    "properties": {"mag": 5.9, "place": "168 km WSW", "time": 1_767_430_800_210, "updated": 1_767_430_900_000},
    "geometry": {"type": "Point", "coordinates": [100.0972, -2.8943, 10]},
}
JOB = {
    "slug": "engineer-berlin-1",
    "company_name": "Acme GmbH",
    "title": "Engineer",
    "description": "<p>Words</p>",
    "remote": False,
    "url": "https://www.arbeitnow.com/jobs/companies/acme/engineer-berlin-1",
    "tags": ["IT"],
    "job_types": [],
    "location": "Berlin",
    "created_at": 1_767_430_800,
}
ANSWERS: dict[str, tuple[Any, dict[str, str], dict[str, list[str]]]] = {
    "github": (
        [ISSUE],
        {"link": '<https://api.github.com/repositories/1/issues?after=Y3&per_page=100>; rel="next"'},
        {"since": ["2026-01-02T03:04:04Z"], "state": ["all"], "sort": ["updated"], "direction": ["desc"]},
    ),
    "hacker_news": (
        {"hits": [HIT], "nbHits": 1, "page": 0, "nbPages": 1, "hitsPerPage": 100},
        {},
        {"numericFilters": ["created_at_i>=1767323044"], "query": ["postgres"], "page": ["0"], "hitsPerPage": ["100"]},
    ),
    "earthquakes": (
        {"type": "FeatureCollection", "metadata": {"count": 1}, "features": [QUAKE]},
        {},
        {"starttime": ["2026-01-02T03:04:04Z"], "offset": ["1"], "limit": ["1000"], "minmagnitude": ["5"]},
    ),
    "arbeitnow": (
        {"data": [JOB], "links": {"next": "https://www.arbeitnow.com/api/job-board-api?page=2"}, "meta": {}},
        {},
        {},
    ),
}
VALUES: dict[str, dict[str, Any]] = {
    "github": {"number": 130_001, "author": "octocat", "labels": '[{"name":"type-bug"}]', "pull_request": None},
    "hacker_news": {"title": "Postgres does it", "link": None, "author": "pg"},
    "earthquakes": {"magnitude": 5.9, "depth_km": 10.0, "url": None},
    "arbeitnow": {"company": "Acme GmbH", "contract_type": None, "category": "IT", "salary_min": None},
}


def configurations() -> Iterator[QueriesSettings]:
    """Every block of the page that describes a client."""
    for block in re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        given = tomllib.loads(block)
        if "queries" not in given:
            continue
        errors: list[str] = []
        found = read_section(
            QueriesSettings, given["queries"], at=("queries",), folder=None, errors=errors, path_text=str(PAGE)
        )
        assert errors == []
        assert found is not None
        yield found


CONFIGURED = {name: one for one in configurations() for name in one.rest_json}


def test_every_client_of_the_page_is_tried():
    assert set(CONFIGURED) == {*ANSWERS, "jobs_api"}
    for name, one in CONFIGURED.items():
        assert {query.client for query in one.queries.values()} == {name}
    with_auth = re.findall(r"^auth\.(\w+) = ", PAGE.read_text(), re.MULTILINE)
    assert {"header", "bearer", "basic", "oauth"} <= set(with_auth)


@pytest.mark.parametrize("name", ANSWERS)
def test_it_asks_and_shapes(name, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "simulated-token")
    settings, (query,) = CONFIGURED[name].rest_json[name], CONFIGURED[name].queries.values()
    body, headers, sent = ANSWERS[name]
    asked: list[Scope] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope)
        told = [(key.encode(), value.encode()) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": told})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async def read() -> tuple[RestJson, Batch]:
        client = RestJson(settings, VirtualClock(), InProcess(application))
        try:
            return client, await client.page(query.parameters, Wanted(since=SINCE))
        finally:
            await client.close()

    client, page = asyncio.run(read())
    (record,) = page.records
    assert isinstance(record, Item)
    assert record.at.replace(microsecond=0) == datetime(2026, 1, 3, 9, tzinfo=UTC)
    values = dict(zip(client.columns, record.values, strict=True))
    assert {column: values[column] for column in VALUES[name]} == VALUES[name]
    (scope,) = asked
    found = parse_qs(scope["query_string"].decode())
    assert sent.items() <= found.items()
    assert {"owner", "repository", "text"}.isdisjoint(found)
    following = {"github": "/repositories/1/issues?after=Y3&per_page=100", "arbeitnow": "/api/job-board-api?page=2"}
    assert page.after == following.get(name)
    assert page.last == (name == "hacker_news")
    if name == "github":
        assert scope["path"] == "/repos/python/cpython/issues"
        assert dict(scope["headers"])[b"authorization"] == b"Bearer simulated-token"
