"""What the simulator promises to those who test against it, beyond what the connector's tests show."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock.model.clock import VirtualClock, parse_instant
from penstock.simulators.infojobs import HTML, Fault, InfoJobsSimulator, throttle
from penstock.simulators.infojobs_data import DEFECTS, TOPICS, Filter, Market, Seen
from penstock.simulators.server import in_thread

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LOGIN = "Basic " + base64.b64encode(b"simulated-client:simulated-secret").decode()
DAY = timedelta(days=1)


def simulated(**options: Any) -> tuple[InfoJobsSimulator, VirtualClock]:
    clock = VirtualClock(NOW)
    market = Market(NOW, **{"history": 42 * DAY, **options.pop("market", {})})
    return InfoJobsSimulator(clock, market, **options), clock


def ask(simulator: InfoJobsSimulator, login: str = LOGIN, **parameters: Any) -> tuple[int, dict[str, str], Any]:
    path = f"/api/9/offer?{urlencode(parameters, doseq=True)}"
    status, headers, body = simulator.answer("GET", path, {"authorization": login}, b"")
    return status, {name.decode(): value.decode() for name, value in headers}, json.loads(body)


def everything(simulator: InfoJobsSimulator, **parameters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for page in range(1, 100):
        answer = ask(simulator, page=page, maxResults=50, **parameters)[2]
        found += answer["items"]
        if page >= answer["totalPages"]:
            return found
    raise AssertionError("it has no end")


def showing(seen: list[Seen], now: datetime) -> dict[str, datetime]:
    return {one.id: updated for one in seen for start, end, updated in one.spans if start <= now < end}


def test_an_answer_is_as_infojobs_writes_it():
    simulator, _ = simulated()
    status, headers, answer = ask(simulator, q="python", maxResults=3)
    assert (status, parsedate_to_datetime(headers["date"])) == (200, NOW)
    assert set(answer) == {
        *("currentPage", "pageSize", "currentResults", "totalResults", "totalPages", "sortBy", "sinceDate", "items"),
    }
    assert (answer["currentPage"], answer["pageSize"], answer["currentResults"]) == (1, 3, 3)
    first = answer["items"][0]
    assert set(first["province"]) == {"id", "value"}
    assert isinstance(first["applications"], str)
    assert first["updated"].endswith(".000Z")
    assert len(ask(simulator, q="python")[2]["items"]) == 20
    assert len(ask(simulator, q="python", maxResults=90)[2]["items"]) == 50


def test_offers_come_newest_first_with_ties_by_id():
    simulator, _ = simulated(market={"rate": 50.0, "history": DAY})
    found = [(item["updated"], item["id"]) for item in everything(simulator, q="camarero")]
    dates = [date for date, _ in found]
    assert len(set(dates)) < len(dates), "there are ties"
    assert found == sorted(sorted(found, key=lambda one: one[1]), key=lambda one: one[0], reverse=True)


@pytest.mark.parametrize("later", [timedelta(), timedelta(hours=5), 3 * DAY, 30 * DAY])
def test_the_oracle_knows_what_was_listed_when(later):
    simulator, clock = simulated()
    before = simulator.offers_of({"q": "datos"}, NOW, NOW + 31 * DAY)
    everything(simulator, q="datos")
    clock.advance(later.total_seconds())
    shown = {item["id"]: parse_instant(item["updated"]) for item in everything(simulator, q="datos")}
    assert shown == showing(before, clock.now())
    assert len(shown) > 100


def test_spans_are_counted_back_from_the_clock():
    simulator, clock = simulated()
    clock.advance(DAY.total_seconds())
    updated = showing(simulator.offers_of({"q": "datos"}, NOW, clock.now() + DAY), clock.now())
    for name, reach in {"_24_HOURS": DAY, "_7_DAYS": 7 * DAY, "_15_DAYS": 15 * DAY}.items():
        expected = {one for one, at in updated.items() if at >= clock.now() - reach}
        assert {item["id"] for item in everything(simulator, q="datos", sinceDate=name)} == expected
    assert {item["id"] for item in everything(simulator, q="datos", sinceDate="ANY")} == set(updated)


def test_time_that_goes_back_and_small_steps_make_no_difference():
    market = Market(NOW, history=20 * DAY)
    found = Filter.of("python")
    ahead = [one.offer.id for one in market.listed(found, NOW + 9 * DAY, None).page(0, 1_000)]
    now = [one.offer.id for one in market.listed(found, NOW, None).page(0, 1_000)]
    assert now != ahead
    for hours in range(9 * 24 + 1):
        again = market.listed(found, NOW + timedelta(hours=hours), None)
    assert [one.offer.id for one in again.page(0, 1_000)] == ahead
    other = Market(NOW, history=20 * DAY, seed=8).listed(found, NOW, None)
    assert [one.offer.id for one in other.page(0, 1_000)] != now


def test_a_market_has_births_bumps_removals_and_reposts():
    simulator, _ = simulated()
    seen = {topic: simulator.offers_of({"q": topic}, NOW, NOW + 60 * DAY) for topic in TOPICS}
    for topic, offers in seen.items():
        born = [one for one in offers if one.spans[0][0] >= NOW]
        assert 5 <= len(born) / 60 <= 60, topic
    everybody = {one.id: one for offers in seen.values() for one in offers}
    assert len(everybody) < sum(map(len, seen.values())), "some are found by two queries"
    assert 0.2 < sum(len(one.spans) > 1 for one in everybody.values()) / len(everybody) < 0.5
    assert sum(one.spans[-1][1] < NOW + 60 * DAY for one in everybody.values()) > len(everybody) / 2
    reposts = [(one, everybody[one.repost_of]) for one in everybody.values() if one.repost_of in everybody]
    assert len(reposts) > 100
    for new, old in reposts:
        assert timedelta() < new.spans[0][2] - old.spans[-1][1] < 10 * DAY


def test_a_repost_is_the_same_offer_under_another_id_and_nothing_else_is():
    simulator, clock = simulated()
    found: dict[str, dict[str, Any]] = {}
    for _ in range(40):
        found |= {item["id"]: item for item in everything(simulator, q="enfermería")}
        clock.advance(DAY.total_seconds())
    looks: dict[tuple[Any, ...], set[str]] = {}
    for item in found.values():
        looks.setdefault((item["title"], item["author"]["name"], item["city"]), set()).add(item["id"])
    linked = {one.id: one.repost_of for one in simulator.offers_of({"q": "enfermería"}, NOW, clock.now())}
    same = [ids for ids in looks.values() if len(ids) > 1]
    assert len(same) > 10
    for ids in same:
        assert all(linked[one] in ids for one in ids if linked[one] is not None)
        assert sum(linked[one] is None for one in ids) <= 1
    assert len({item["author"]["name"] for item in found.values()}) < len(found) / 2


def test_late_offers_are_listed_after_their_birth():
    simulator, _ = simulated(market={"late": timedelta(hours=1)})
    seen = simulator.offers_of({"q": "camarero"}, NOW, NOW + 5 * DAY)
    waits = [one.spans[0][0] - one.spans[0][2] for one in seen if one.spans[0][0] > NOW]
    assert max(waits) > timedelta(minutes=40)
    assert min(waits) >= timedelta()


def test_provinces_and_words_choose():
    simulator, _ = simulated()
    madrid = everything(simulator, q="Camarero", province="Madrid")
    assert {item["province"]["value"] for item in madrid} == {"Madrid"}
    assert everything(simulator, q="camarero", province="madrid") == madrid
    both = everything(simulator, q="camarero", province=["33", "Barcelona"])
    assert {item["province"]["value"] for item in both} == {"Madrid", "Barcelona"}
    assert 0 < len(everything(simulator, q="camarero python")) < len(everything(simulator, q="camarero"))
    assert everything(simulator, q="nobody") == []
    seen = simulator.offers_of({"q": "camarero", "province": ["33", "Barcelona"]}, NOW, NOW + timedelta(seconds=1))
    assert {one.id for one in seen} == {item["id"] for item in both}


@pytest.mark.parametrize(
    ("login", "parameters", "status", "code"),
    [
        ("", {}, 401, "101"),
        ("Basic bm9ib2R5Om5vYm9keQ==", {}, 401, "101"),
        (LOGIN, {"page": "0"}, 400, "301"),
        (LOGIN, {"page": "first"}, 400, "301"),
        (LOGIN, {"sinceDate": "_3_DAYS"}, 400, "301"),
        (LOGIN, {"order": "title"}, 400, "301"),
    ],
)
def test_errors_are_json(login, parameters, status, code):
    simulator, _ = simulated()
    told, headers, answer = ask(simulator, login, **parameters)
    assert (told, answer["error"], set(answer)) == (status, code, {"error", "error_description", "timestamp"})
    assert ("www-authenticate" in headers) == (status == 401)
    assert simulator.answer("POST", "/api/9/offer", {}, b"")[0] == 404


def test_limits_of_pages_and_of_offers():
    simulator, _ = simulated(most_pages=3)
    answer = ask(simulator, q="camarero", maxResults=20, page=4)[2]
    assert (answer["totalPages"], answer["items"], answer["totalResults"] > 60) == (3, [], True)
    simulator.repeats_last = True
    last = ask(simulator, q="camarero", maxResults=20, page=4)[2]
    assert (last["currentPage"], len(last["items"])) == (3, 20)
    simulator.most_pages, simulator.most_offers = None, 70
    last = ask(simulator, q="camarero", maxResults=20, page=4)[2]
    assert (last["totalPages"], len(last["items"])) == (4, 10)


def test_faults_come_when_they_are_asked_for_and_calls_are_remembered():
    simulator, _ = simulated(list_key="offers")
    simulator.faults["offers"].extend([throttle("7"), throttle(), Fault(500), Fault(repeats=True)])
    assert ask(simulator)[1]["retry-after"] == "7"
    assert "retry-after" not in ask(simulator)[1]
    assert ask(simulator)[0] == 500
    assert ask(simulator, page=9)[2]["offers"] == ask(simulator, page=1)[2]["offers"]
    for defect in DEFECTS:
        simulator.faults["offers"].append(Fault(spoils=defect))
        first, second = ask(simulator)[2]["offers"][:2]
        assert set(second) == {
            *first,
            *{"no_id": ["id"], "no_date": ["updated", "published"]}.get(defect, []),
            "applications",
        }
    simulator.faults["offers"].append(Fault(cut=True))
    with pytest.raises(ConnectionAbortedError):
        ask(simulator)
    simulator.every["offers", 2] = HTML
    answers = [simulator.answer("GET", "/api/9/offer", {"authorization": LOGIN}, b"")[2][:5] for _ in range(4)]
    assert sorted(answers) == [b"<!DOC", b"<!DOC", b'{"cur', b'{"cur']
    assert simulator.counted["offers"] == len(simulator.requests) == 14
    assert simulator.requests[3].one("page") == "9"


def test_a_share_of_offers_is_malformed_for_good():
    simulator, _ = simulated(market={"bad": 0.2})
    seen = simulator.offers_of({"q": "camarero"}, NOW, NOW + DAY)
    wrong = [one for one in seen if one.defect]
    assert 0.1 < len(wrong) / len(seen) < 0.3
    assert {one.defect for one in wrong} == set(DEFECTS)
    shown = everything(simulator, q="camarero")
    untitled = {item["id"] for item in shown if item.get("title") is None}
    assert untitled == {one.id for one in wrong if one.defect == "null_title" and one.spans[0][0] <= NOW}


def test_it_is_served_on_a_socket():
    simulator, _ = simulated()
    with in_thread(simulator) as address:
        request = urllib.request.Request(f"{address}/api/7/offer?q=python", headers={"Authorization": LOGIN})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert len(json.loads(answer.read())["items"]) == 20
            told = answer.headers.get_all("date")
            assert [parsedate_to_datetime(date) for date in told] == [NOW], "the time of its own clock alone"
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{address}/api/9/offer", timeout=30)
        with caught.value as error:
            assert error.headers["WWW-Authenticate"] == 'Basic realm="InfoJobs-API"'
