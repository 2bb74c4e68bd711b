"""What the simulator promises to those who test against it, beyond what the connector's tests show."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import date, timedelta
from typing import Any

import pytest

from penstock.model.clock import VirtualClock
from penstock.simulators.google_ads import PAGE_ROWS, GoogleAdsSimulator
from penstock.simulators.google_data import RESOURCES, BadQuery, Campaigns, Gaql
from penstock.simulators.server import in_thread
from tests.support.google import CUSTOMER, DAILY, DAY, GAQL, NOW, Login, on

FORM = (
    "grant_type=refresh_token&client_id=simulated.apps.googleusercontent.com&client_secret=simulated-client-secret"
    "&refresh_token=1%2F%2Fsimulated-refresh-token"
)


def known(day: date = DAY, age: timedelta = timedelta(days=2), customer: str = CUSTOMER, **made: Any) -> list[Any]:
    query = Gaql.parse(DAILY.replace("{date}", day.isoformat()))
    midnight = NOW.replace(year=day.year, month=day.month, day=day.day, hour=0)
    return list(Campaigns(**made).rows(customer, query, midnight + age))


def test_the_same_question_has_the_same_answer_and_others_have_others():
    assert known() == known()
    assert known() != known(seed=8)
    assert known() != known(DAY + timedelta(days=1))
    assert known() != known(customer="2222222222")


def test_conversions_become_known_and_then_rest():
    early, late, later = (known(age=timedelta(days=days)) for days in (1, 3, 30))
    assert early != late == later

    def without(rows: list[Any]) -> list[Any]:
        return [{**row, "metrics": {**row["metrics"], "conversions": None}} for row in rows]

    assert without(early) == without(late)


def test_whole_numbers_are_texts_on_the_wire():
    (row,) = known(campaigns=1)
    assert row["campaign"]["id"] == "10000000000"
    assert {name: type(value) for name, value in row["metrics"].items()} == {
        "clicks": str,
        "costMicros": str,
        "conversions": float,
    }


@pytest.mark.parametrize("resource", RESOURCES)
def test_every_field_of_every_resource_can_be_selected(resource):
    gaql = f"SELECT {', '.join(RESOURCES[resource])} FROM {resource} WHERE segments.date = '2026-11-14'"
    rows = list(Campaigns().rows(CUSTOMER, Gaql.parse(gaql), NOW))
    assert len(rows) == {"customer": 1, "campaign": 5, "ad_group": 20}[resource]
    assert set(rows[0]) >= {"customer", "metrics", "segments"}


def test_days_and_limits():
    between = (
        "SELECT campaign.id, segments.date FROM campaign WHERE segments.date BETWEEN '2026-11-01' AND '2026-11-03'"
    )
    rows = list(Campaigns(campaigns=2).rows(CUSTOMER, Gaql.parse(f"{between} ORDER BY campaign.id LIMIT 5"), NOW))
    assert [row["segments"]["date"][-2:] for row in rows] == ["01", "01", "02", "02", "03"]
    with pytest.raises(BadQuery, match="unexpected input WHERE campaign"):
        Gaql.parse("SELECT campaign.id FROM campaign WHERE campaign.id = 7")


def post(address: str, path: str, body: Any, token: str = "") -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{address}{path}", data=data, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def name_of(answer: Any) -> str:
    (code,) = answer["error"]["details"][0]["errors"][0]["errorCode"].values()
    return str(code)


def test_it_serves_from_a_thread_in_pages_of_ten_thousand():
    simulator = GoogleAdsSimulator(VirtualClock(NOW), Campaigns(campaigns=PAGE_ROWS + 3))
    with in_thread(simulator) as address:
        status, answer = post(address, "/token", FORM.encode())
        assert (status, answer["expires_in"], answer["token_type"]) == (200, 3599, "Bearer")
        token, path = answer["access_token"], f"/v26/customers/{CUSTOMER}/googleAds:search"
        query = {"query": "SELECT campaign.id FROM campaign"}
        status, first = post(address, path, query, token)
        assert (status, len(first["results"]), first["fieldMask"]) == (200, PAGE_ROWS, "campaign.id")
        status, second = post(address, path, {**query, "pageToken": first["nextPageToken"]}, token)
        assert (status, len(second["results"])) == (200, 3)
        assert "nextPageToken" not in second
        for wrong, name in (
            ({**query, "pageSize": 50}, "PAGE_SIZE_NOT_SUPPORTED"),
            ({**query, "pageToken": "x"}, "INVALID_PAGE_TOKEN"),
            ({}, "REQUIRED_FIELD_MISSING"),
            ({"query": "SELECT campaign.nope FROM campaign"}, "UNRECOGNIZED_FIELD"),
        ):
            status, answer = post(address, path, wrong, token)
            assert (status, answer["error"]["status"], name_of(answer)) == (400, "INVALID_ARGUMENT", name)
        assert post(address, path, query, "ya29.forged")[0] == 401
        assert post(address, path.replace(CUSTOMER, "3333333333"), query, token)[0] == 403
        simulator.clock.advance(3_600)  # type: ignore[attr-defined]
        assert post(address, path, query, token)[0] == 401, "the token has expired"
        assert len(simulator.calls("search")) == 9


def test_a_stream_is_an_array_of_batches():
    simulator = GoogleAdsSimulator(VirtualClock(NOW), batch_rows=2)
    with in_thread(simulator) as address:
        token = post(address, "/token", FORM.encode())[1]["access_token"]
        status, batches = post(address, f"/v26/customers/{CUSTOMER}/googleAds:searchStream", {"query": GAQL}, token)
        assert status == 200
        assert [len(batch["results"]) for batch in batches] == [2, 2, 1]
        assert {batch["requestId"] for batch in batches} == {"simulated-request"}
        assert batches[0]["fieldMask"].split(",")[-2:] == ["metrics.conversions", "segments.date"]


def test_a_revoked_login_gets_no_token():
    simulator = GoogleAdsSimulator(VirtualClock(NOW))
    with in_thread(simulator) as address:
        simulator.refresh_tokens.clear()
        assert post(address, "/token", FORM.encode())[1]["error"] == "invalid_grant"
        assert post(address, "/token", FORM.replace("secret=simulated", "secret=x").encode())[0] == 401
        assert post(address, "/token", b"grant_type=password")[1]["error"] == "unsupported_grant_type"


def test_later_rows_differ_through_the_connector(tmp_path):
    async def test(g: Login) -> None:
        first = await g.rows()
        g.clock.advance(timedelta(days=3).total_seconds())
        second = await g.rows()
        assert sum(row["metrics"]["conversions"] for row in first) < sum(
            row["metrics"]["conversions"] for row in second
        )

    on(tmp_path, test)
