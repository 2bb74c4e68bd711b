"""What the simulator promises to those who test against it, beyond what the client's tests show."""

from __future__ import annotations

import json
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.clock import VirtualClock
from penstock.settings.reader import read_section
from penstock.simulators.catalogue import SIMULATORS
from penstock.simulators.paged import FOREIGN, STYLES, Churn, Fault, PagedSimulator, throttle
from penstock.simulators.paged_data import AGE, CATEGORIES, DEFECTS, ODDITIES, Listing
from tests.support.paged import NOW


def ask(simulator: PagedSimulator, style: str, **parameters: Any) -> tuple[int, dict[str, str], Any]:
    status, headers, body = simulator.answer("GET", f"/{style}?{urlencode(parameters)}", {"host": "h"}, b"")
    return status, {name.decode(): value.decode() for name, value in headers}, json.loads(body)


def test_a_seed_is_a_list():
    def written(listing: Listing) -> list[Any]:
        return [listing.record(number) for number in listing]

    assert written(Listing(50, NOW)) == written(Listing(50, NOW))
    assert written(Listing(50, NOW)) != written(Listing(50, NOW, seed=8))
    ages = [NOW.timestamp() - record["updated_unix"] for record in written(Listing(200, NOW))]
    assert ages == sorted(ages)
    assert 0 <= ages[0] < AGE.total_seconds() / 10
    assert AGE.total_seconds() * 0.9 < ages[-1] <= AGE.total_seconds() + 1


def test_what_changes_is_the_newest_and_what_goes_is_gone():
    listing = Listing(20, NOW)
    later = NOW + timedelta(hours=1)
    before = list(listing)
    bumped = listing.bump(3, later)
    assert set(list(listing)[:3]) == set(bumped)
    assert "Version 2" in listing.record(bumped[0])["text"]
    assert listing.record(bumped[0])["created_at"] < listing.record(bumped[0])["updated_at"]
    added = listing.add(2, later)
    assert added == [21, 22]
    removed = listing.remove(5)
    assert len(listing) == 17
    assert set(listing) == {*before, *added} - set(removed)
    assert len(listing.listed(since=later)) == len({*bumped, *added} - set(removed))
    assert list(listing.listed(newest_first=False)) == sorted(listing.listed(), key=lambda key: -key[1])
    listing.remove(100)
    assert len(listing) == 0


def test_filters():
    listing = Listing(300, NOW)
    parts = [listing.listed(categories=[name]) for name in CATEGORIES]
    assert all(parts)
    assert sorted(key for part in parts for key in part) == list(listing.listed())
    simulator = PagedSimulator(VirtualClock(NOW), listing)
    body = ask(simulator, "page", category="python,java", per_page=100)[2]
    assert body["meta"]["total"] == len(listing.listed(categories=["python", "java"]))
    assert {item["category"] for item in body["data"]["items"]} == {"python", "java"}


def test_a_share_of_records_is_bad():
    listing = Listing(2_000, NOW, bad=0.2)
    found = [listing.defect(number) for number in listing]
    assert 300 < sum(defect is not None for defect in found) < 500
    assert {*DEFECTS, *ODDITIES} == {defect for defect in found if defect}
    assert not any(Listing(500, NOW).defect(number) for number in range(1, 501))


@pytest.mark.parametrize(
    ("style", "parameters", "said"),
    [
        ("page", {"page": 0}, "page must be"),
        ("page", {"page": "x"}, "page must be"),
        ("page", {"page": 4}, "not be above 3"),
        ("offset", {"offset": -1}, "offset must be"),
        ("offset", {"limit": 0}, "limit must be"),
        ("cursor", {"cursor": "abc"}, "not a cursor"),
        ("all", {"since": "yesterday"}, "not a date"),
    ],
)
def test_what_cannot_be_asked_is_refused(style, parameters, said):
    status, _, body = ask(PagedSimulator(VirtualClock(NOW), last_page=3), style, **parameters)
    assert (status, said in body["message"]) == (400, True)


def test_faults_come_once_or_every_nth_time():
    simulator = PagedSimulator(VirtualClock(NOW), Listing(50, NOW))
    simulator.faults["list"] += [throttle("3"), throttle(), Fault(twist="nothing"), Fault(twist="foreign")]
    status, headers, _ = ask(simulator, "page")
    assert (status, headers["retry-after"]) == (429, "3")
    assert "retry-after" not in ask(simulator, "page")[1]
    assert ask(simulator, "page")[2]["data"]["items"] == []
    assert FOREIGN in ask(simulator, "link")[1]["link"]
    simulator.every["list", 2] = Fault(503, {})
    assert [ask(simulator, "all")[0] for _ in range(4)] == [200, 503, 200, 503]
    simulator.every["list", 1] = Fault(cut=True)
    with pytest.raises(ConnectionAbortedError):
        ask(simulator, "all")
    assert simulator.counted["list"] == len(simulator.requests) == 9
    assert simulator.answer("GET", "/elsewhere", {}, b"")[0] == 404


def test_the_list_changes_between_pages():
    simulator = PagedSimulator(VirtualClock(NOW), Listing(50, NOW), churn=Churn(2, added=3, bumped=1, removed=1))
    totals = [ask(simulator, "page")[2]["meta"]["total"] for _ in range(5)]
    assert totals == [50, 50, 52, 52, 54]


@pytest.mark.parametrize("style", STYLES)
def test_every_way_has_the_same_records(style):
    simulator = PagedSimulator(VirtualClock(NOW), Listing(15, NOW))
    body = ask(simulator, style)[2]
    items = body if style == "link" else body["data"]["items"]
    assert [item["id"] for item in items] == list(simulator.offers)


def test_the_catalogues_lines_are_settings_of_queries(tmp_path):
    row = SIMULATORS["paged"]
    options = {option.name: option.default for option in row.options} | {"records": 10, "churn": 2}
    served = row.make(VirtualClock(NOW), options, [row.trouble("list=repeat"), row.trouble("token=throttle:3")])
    given = tomllib.loads("\n".join(served.lines("http://127.0.0.1:8123")))
    errors: list[str] = []
    found = read_section(
        QueriesSettings, given["queries"], at=("queries",), folder=Path(tmp_path), errors=errors, path_text="p.toml"
    )
    assert errors == []
    assert found is not None
    assert set(found.rest_json) == {"by_page", "by_offset", "by_cursor", "by_link"}
    assert {query.client for query in found.queries.values()} == set(found.rest_json)
    assert found.rest_json["by_link"].table == "simulated_offers"
    assert set(served.secrets) == {"PAGED_CLIENT_SECRET"}
