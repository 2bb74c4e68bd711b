"""The generic client against the generic API's simulator: every login, and every answer that is no page."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import pytest

from penstock.connectors.rest_json.client import RestJson
from penstock.connectors.searches import Wanted
from penstock.model.clock import VirtualClock
from penstock.model.errors import Fatal, Rejected, Throttled, Transient
from penstock.settings.redaction import redact
from penstock.simulators.paged import Fault, PagedSimulator, throttle
from penstock.simulators.paged_data import Listing
from penstock.simulators.server import serving
from tests.support.paged import ADDRESS, NOW, PAGING, Api, described, on, rest

SECRET = {"env": "PAGED_KEY"}
LOGINS: dict[str, dict[str, Any]] = {
    "header": {"header": {"name": "X-Api-Key", "secret": SECRET}},
    "bearer": {"bearer": {"secret": SECRET}},
    "basic": {"basic": {"user": "simulated-user", "secret": SECRET}},
    "oauth": {
        "oauth": {"token_url": f"{ADDRESS}/token", "client_id": "simulated-client", "secret": SECRET, "scope": "r"}
    },
}


@pytest.mark.parametrize("auth", LOGINS)
def test_every_login_opens_the_api(auth, monkeypatch):
    monkeypatch.setenv("PAGED_KEY", "simulated-api-key")

    async def test(api: Api) -> None:
        found, _ = await api.walk()
        assert len(found) == 205
        tokens = [request for request in api.simulator.requests if request.operation == "token"]
        assert len(tokens) == (auth == "oauth")
        assert api.client.calls == len(api.simulator.requests), "those for tokens are counted too"
        assert all(request.form["scope"] == "r" for request in tokens)

    on(test, auth=auth, given={"auth": LOGINS[auth]})


@pytest.mark.parametrize("auth", LOGINS)
def test_a_wrong_login_is_fatal_and_keeps_its_secret(auth, monkeypatch):
    monkeypatch.setenv("PAGED_KEY", "not-that-secret")

    async def test(api: Api) -> None:
        with pytest.raises(Fatal, match="401") as refused:
            await api.first()
        hidden = b64encode(b"simulated-user:not-that-secret").decode()
        assert not {"not-that-secret", hidden} & set(redact(str(refused.value)).split())
        monkeypatch.delenv("PAGED_KEY")
        with pytest.raises(Fatal, match="PAGED_KEY is not set"):
            await api.first()
        monkeypatch.setenv("PAGED_KEY", "simulated-api-key")
        assert (await api.first()).records

    on(test, auth=auth, given={"auth": LOGINS[auth]})


def test_a_token_that_is_refused_is_renewed_once(monkeypatch):
    monkeypatch.setenv("PAGED_KEY", "simulated-api-key")

    async def test(api: Api) -> None:
        await api.first()
        api.simulator.expire_tokens()
        assert (await api.first()).records
        assert api.simulator.counted["token"] == 2
        api.clock.advance(3_600)
        assert (await api.first()).records
        assert api.simulator.counted == {"token": 3, "list": 4}
        api.simulator.every["list", 1] = Fault(401, {})
        with pytest.raises(Fatal):
            await api.first()
        assert api.simulator.counted["token"] == 4

    on(test, auth="oauth", given={"auth": LOGINS["oauth"]})


@pytest.mark.parametrize(
    ("fault", "raised", "said"),
    [
        (throttle("7"), Throttled, "429"),
        (throttle(), Throttled, "429"),
        (throttle("7", 403), Throttled, "403"),
        (Fault(403, {}, (("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1794744060"))), Throttled, "403"),
        (Fault(403, {"message": "no"}), Fatal, "403"),
        (Fault(401, {}), Fatal, "401"),
        (Fault(404, {}), Rejected, "404"),
        (Fault(400, {}), Rejected, "400"),
        (Fault(500, {}), Transient, "500"),
        (Fault(302, {}, (("location", "https://elsewhere.example.com"),)), Transient, "302"),
        (Fault(cut=True), Transient, "closed the connection"),
        (Fault(twist="broken"), Transient, "the answer is not JSON"),
        (Fault(200, b""), Transient, "it is empty"),
        (Fault(200, b"<html>"), Transient, "not JSON: '<html>'"),
        (Fault(200, {"error": 1, "data": {}}), Rejected, "no list at 'data.items'; there is nothing.*error, data"),
        (Fault(200, {"data": {"items": {"a": 1}}}), Rejected, "no list at 'data.items'; there is an object"),
        (Fault(200, [1]), Rejected, "no list at 'data.items'.*the answer is a list"),
        (Fault(200, b"[" * 100_000), Transient, "not JSON"),
    ],
)
def test_what_an_answer_means(fault, raised, said):
    async def test(api: Api) -> None:
        api.simulator.faults["list"].append(fault)
        with pytest.raises(raised, match=said) as error:
            await api.first()
        if isinstance(error.value, Throttled):
            asked = dict(fault.headers)
            expected = 7.0 if "retry-after" in asked else 60.0 if asked else None
            assert error.value.retry_after == expected
        assert len(str(error.value)) < 600
        assert (await api.first()).records

    on(test)


@pytest.mark.parametrize("style", PAGING)
def test_it_is_the_same_over_a_socket(style, monkeypatch):
    monkeypatch.setenv("PAGED_KEY", "simulated-api-key")

    async def test() -> None:
        clock = VirtualClock(NOW)
        simulator = PagedSimulator(clock, Listing(65, NOW), auth="oauth")
        async with serving(simulator) as address:
            auth = {"oauth": LOGINS["oauth"]["oauth"] | {"token_url": f"{address}/token"}}
            client = RestJson(rest(described(style, url=address, auth=auth)), clock)
            try:
                found, _ = await Api(simulator, clock, client).walk()
                simulator.faults["list"].append(Fault(cut=True))
                with pytest.raises(Transient):
                    await client.page({}, Wanted())
            finally:
                await client.close()
        assert [record.id for record in found] == [str(number) for number in simulator.offers]

    asyncio.run(test())


def test_an_answer_without_content_is_an_empty_list():
    async def test(api: Api) -> None:
        for fault in (Fault(204, b""), Fault(200, {"data": {"items": []}}), Fault(twist="nothing")):
            api.simulator.faults["list"].append(fault)
            page = await api.first()
            assert (list(page.records), page.last) == ([], True)

    on(test)


@pytest.mark.parametrize("fault", [Fault(500, {}), Fault(403, {}), Fault(cut=True), throttle("7")])
def test_an_error_of_a_followed_link_shows_its_path_alone(fault):
    """Some providers put a key into the links to their next pages."""

    async def test(api: Api) -> None:
        api.simulator.faults["list"].append(fault)
        with pytest.raises((Transient, Fatal, Throttled)) as error:
            await api.client.follow("/link?page=2&api_key=not-to-be-shown")
        assert "GET /link" in str(error.value)
        assert "not-to-be-shown" not in str(error.value)

    on(test)
