"""What the simulator promises to those who test against it, beyond what the connector's tests show."""

from __future__ import annotations

import asyncio
import gzip
import json
import urllib.error
import urllib.request
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.amazon_ads.client import daily
from penstock.model.clock import VirtualClock
from penstock.simulators.amazon_ads import MEDIA, AmazonAdsSimulator, compressed
from penstock.simulators.amazon_data import Performance
from penstock.simulators.server import in_thread
from tests.support.amazon import DAY, NOW, Profile, on

SPEC = daily("target", DAY)


def known(day: date, age: timedelta, **performance: Any) -> list[dict[str, Any]]:
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return list(Performance(**performance).report("1001", "spTargeting", [day], midnight + age))


def test_the_same_question_has_the_same_answer_and_others_have_others():
    age = timedelta(days=2)
    assert known(DAY, age) == known(DAY, age)
    assert known(DAY, age) != known(DAY, age, seed=8)
    assert known(DAY, age) != known(DAY + timedelta(days=1), age)


def test_data_is_restated_at_some_offsets_and_then_rests():
    offsets = [1, 3, 5, 7, 14, 30, 60]
    found = [known(DAY, timedelta(days=n, minutes=8)) for n in offsets]
    changed = [n for n, before, after in zip(offsets[1:], found, found[1:], strict=False) if before != after]
    assert changed == [3, 7, 30]
    assert found[0] != known(DAY, timedelta(hours=12))


def test_a_refresh_later_brings_other_numbers_through_the_connector(tmp_path):
    async def test(p: Profile) -> None:
        first = await p.read(await p.ready(await p.ads.create(SPEC)))
        p.clock.advance(timedelta(days=8).total_seconds())
        second = await p.read(await p.ready(await p.ads.create(SPEC)))
        assert [row["keywordId"] for row in first] == [row["keywordId"] for row in second]
        assert sum(int(str(r["purchases7d"])) for r in first) < sum(int(str(r["purchases7d"])) for r in second)

    on(tmp_path, test)


def post(address: str, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"{address}{path}", data=data, headers=sent, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_it_serves_from_a_thread_and_checks_media_type_token_and_client():
    simulator = AmazonAdsSimulator(VirtualClock(NOW))
    with in_thread(simulator) as address:
        form = (
            f"grant_type=refresh_token&client_id={simulator.client_id}&client_secret={simulator.client_secret}"
            "&refresh_token=Atzr%7Csimulated-refresh-token"
        )
        status, answer = post(address, "/auth/o2/token", form.encode())
        assert (status, answer["expires_in"], answer["token_type"]) == (200, 3600, "bearer")
        headers = {
            "Authorization": f"Bearer {answer['access_token']}",
            "Amazon_Advertising_API_ClientId": simulator.client_id,
            "Amazon_Advertising_API_Scope": "1001",
            "Content_Type": MEDIA,
        }
        path = "/reporting/reports"
        for change, wanted in [
            ({"Content_Type": "application/json"}, 415),
            ({"Authorization": "Bearer Atza|forged"}, 401),
            ({"Amazon_Advertising_API_ClientId": "other"}, 401),
            ({"Amazon_Advertising_API_Scope": "9"}, 401),
        ]:
            assert post(address, path, SPEC.body(), **headers | change)[0] == wanted
        assert post(address, path, b"{}", **headers)[0] == 400
        assert post(address, path, b"[", **headers)[0] == 400
        status, report = post(address, path, SPEC.body(), **headers)
        assert (status, report["status"], report["url"]) == (200, "PENDING", None)
        status, answer = post(address, path, SPEC.body(), **headers)
        assert (status, answer["detail"]) == (425, f"The Request is a duplicate of : {report['reportId']}")
        simulator.clock.advance(3_600)  # type: ignore[attr-defined]
        assert post(address, path, SPEC.body(), **headers)[0] == 401, "the token has expired"
        assert len(simulator.calls("create")) == 9


def test_storage_refuses_credentials(tmp_path):
    async def test(p: Profile) -> None:
        url = await p.ready(await p.ads.create(SPEC))
        request = urllib.request.Request(url, headers={"Authorization": "Bearer Atza|x"})
        loop = asyncio.get_running_loop()
        with pytest.raises(urllib.error.HTTPError, match="400"):
            await loop.run_in_executor(None, urllib.request.urlopen, request)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            await loop.run_in_executor(None, urllib.request.urlopen, url[:-3] + "abc")

    on(tmp_path, test)


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1_000])
def test_a_file_is_one_array_in_gzip(count):
    rows = [{"n": n, "text": "ñ"} for n in range(count)]
    assert json.loads(gzip.decompress(b"".join(compressed(rows)))) == rows


def test_reports_of_several_days_hold_each_day(tmp_path: Path):
    found = list(Performance(rows=2).report("1001", "spAdvertisedProduct", [DAY, DAY + timedelta(days=1)], NOW))
    assert [row["date"] for row in found] == ["2026-11-14"] * 2 + ["2026-11-15"] * 2
