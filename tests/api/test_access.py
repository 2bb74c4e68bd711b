"""Who is let in, as what, and what a browser is kept from."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock.api.desk import Bound
from penstock.api.routes import PREFIX
from penstock.app.person import user
from penstock.model.clock import VirtualClock
from penstock.settings.kernel import WebSettings
from tests.support.web import HOME, Answer, Client, Site, site

UNITS, WAKE = f"{PREFIX}/units", f"{PREFIX}/units/wake"
FORM = "application/x-www-form-urlencoded"
TOKENS = WebSettings(require_token=True)
NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOW)


@pytest.fixture
def shop_site(site_url: str, clock: VirtualClock) -> Iterator[Site]:
    with site(site_url, clock=clock) as made:
        yield made


def create(site: Site, name: str = "jo", role: str = "operator", **more: Any) -> str:
    """A token, given out by a person at this machine."""
    client, wanted = site.client(), {"name": name, "role": role, **more}
    shown = client.post(f"{PREFIX}/token/create/preview", wanted).json
    done = client.post(f"{PREFIX}/token/create/apply", wanted | {"digest": shown["digest"]})
    assert done.status == 200, done.body
    return str(done.json["secret"])


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def wake(client: Client, **headers: str) -> Answer:
    return client.post(f"{WAKE}/preview", {"units": ["order:acme/1"]}, **headers)


# -- tokens and roles


def test_loopback_needs_no_token_unless_somebody_may_stand_between(shop_site: Site):
    assert shop_site.client().get(UNITS).status == 200
    assert shop_site.client(client="10.0.0.9").get(UNITS).status == 401
    for header in ("forwarded", "x_forwarded_for", "x_forwarded_host", "x_forwarded_proto"):
        assert shop_site.client().get(UNITS, **{header: "x"}).status == 401
    for web in (TOKENS, WebSettings(hosts=("desk.example.com",)), WebSettings(trusted_proxies=("127.0.0.1",))):
        refused = shop_site.client(web).get(UNITS)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, 'Bearer realm="penstock"')
    assert shop_site.client(bound=Bound("0.0.0.0", 8642)).get(UNITS).status == 401


@pytest.mark.timeout(60)
def test_long_readings_keep_nobody_at_the_door(shop_site: Site):
    """As many as are answered at once are under way: health is told, and who is known is told from who is not."""
    client, token = shop_site.client(TOKENS), create(shop_site)
    desk, go_on = shop_site.desks[-2], threading.Event()

    async def main() -> list[int]:
        long = [asyncio.create_task(desk.read(go_on.wait)) for _ in range(20)]
        try:
            wrong = bearer(token[:-1] + ("0" if token[-1] != "0" else "1"))
            asked = [("/readyz", {}), (f"{PREFIX}/nothing", {}), ("/sign-out", bearer(token)), ("/sign-out", wrong)]
            found = []
            for path, headers in asked:
                method = "POST" if path == "/sign-out" else "GET"
                found.append((await client.ask(method, path, b"", {**client.headers, **headers})).status)
            return found
        finally:
            go_on.set()
            await asyncio.gather(*long)

    assert asyncio.run(main()) == [200, 404, 204, 401]


def test_a_role_may_do_what_those_before_it_may(shop_site: Site):
    statuses = {}
    client = shop_site.client(TOKENS)
    for role in ("viewer", "operator", "admin"):
        token = bearer(create(shop_site, role, role))
        tokens = client.get(f"{PREFIX}/token", **token)
        statuses[role] = (client.get(UNITS, **token).status, wake(client, **token).status, tokens.status)
    assert statuses == {"viewer": (200, 403, 403), "operator": (200, 200, 403), "admin": (200, 200, 200)}
    said = wake(client, **bearer(create(shop_site, "eve", "viewer"))).json["detail"]
    assert said == "eve is viewer here, and this needs operator; use a token of that role"


def test_what_is_done_with_a_token_is_recorded_under_its_name(shop_site: Site):
    client, token = shop_site.client(TOKENS), bearer(create(shop_site))
    wanted = {"units": ["order:acme/5"], "reason": "look"}
    shown = client.post(f"{WAKE}/preview", wanted, **token).json
    assert client.post(f"{WAKE}/apply", {**wanted, "digest": shown["digest"]}, **token).json["count"] == 1
    sql = "SELECT actor, reason FROM transition_log WHERE unit_id = 'acme/5' ORDER BY seq DESC LIMIT 1"
    assert shop_site.rows(sql) == [("operator:jo (token)", "look")]


def test_a_token_and_the_person_at_the_machine_of_one_name_are_told_apart(shop_site: Site):
    """Also by their keys: an act of the one is not an answer to the other."""
    token, wanted = bearer(create(shop_site, user())), {"units": ["order:acme/5"], "reason": "look"}
    for client, headers in [(shop_site.client(), {}), (shop_site.client(TOKENS), token)]:
        shown = client.post(f"{WAKE}/preview", wanted, **headers).json
        done = client.post(f"{WAKE}/apply", wanted | {"digest": shown["digest"]}, idempotency_key="one", **headers)
        assert done.json["count"] == 1
    sql = "SELECT actor FROM transition_log WHERE unit_id = 'acme/5' AND reason = 'look' ORDER BY seq"
    assert shop_site.rows(sql) == [(f"operator:{user()}",), (f"operator:{user()} (token)",)]


def test_a_token_is_kept_as_a_hash_and_ends(shop_site: Site, clock: VirtualClock):
    token = create(shop_site, expires="1h")
    assert token.split("_")[2] not in str(shop_site.rows("SELECT * FROM token"))
    client = shop_site.client(TOKENS)
    assert client.get(UNITS, **bearer(token)).status == 200
    for wrong in (token[:-1], token[:-1] + ("0" if token[-1] != "0" else "1"), token.upper(), "", "x" * 5_000):
        assert client.get(UNITS, **bearer(wrong)).status == 401
    assert client.get(UNITS, authorization=f"Basic {token}").status == 401
    assert shop_site.client().get(UNITS, **bearer("wrong")).status == 401  # a wrong token is not nobody
    clock.advance(3_601)
    assert client.get(UNITS, **bearer(token)).status == 401


def test_a_revoked_token_is_refused_at_once(shop_site: Site):
    token, local = create(shop_site), shop_site.client()
    client = shop_site.client(TOKENS)
    shown = local.post(f"{PREFIX}/token/revoke/preview", {"name": "jo"}).json
    assert client.get(UNITS, **bearer(token)).status == 200
    assert local.post(f"{PREFIX}/token/revoke/apply", {"name": "jo", "digest": shown["digest"]}).status == 200
    assert client.get(UNITS, **bearer(token)).status == 401
    (row,) = local.get(f"{PREFIX}/token").json["rows"]
    assert (row["name"], row["state"]) == ("jo", "revoked")
    create(shop_site)  # the name is free again
    kinds = shop_site.rows("SELECT event_type FROM event_log WHERE event_type LIKE 'token%'")
    assert sorted(kind for (kind,) in kinds) == ["token.created", "token.created", "token.revoked"]


def test_a_secret_is_shown_once_though_its_key_is_used_again(shop_site: Site):
    client, wanted = shop_site.client(), {"name": "jo", "role": "viewer"}
    shown = client.post(f"{PREFIX}/token/create/preview", wanted).json
    asked = wanted | {"digest": shown["digest"]}
    first = client.post(f"{PREFIX}/token/create/apply", asked, idempotency_key="one").json
    again = client.post(f"{PREFIX}/token/create/apply", asked, idempotency_key="one").json
    assert (first["secret"][:4], again["secret"], again["count"]) == ("pst_", None, 1)
    assert first["secret"] not in str(shop_site.rows("SELECT * FROM api_request"))


def test_two_who_were_shown_the_same_are_not_both_given_a_token(shop_site: Site):
    client, wanted = shop_site.client(), {"name": "jo", "role": "viewer"}
    asked = wanted | {"digest": client.post(f"{PREFIX}/token/create/preview", wanted).json["digest"]}
    together, answers = threading.Barrier(4), list[Answer]()

    def give() -> None:
        together.wait()
        answers.append(client.post(f"{PREFIX}/token/create/apply", asked))

    threads = [threading.Thread(target=give) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(one.status for one in answers) == [200, 422, 422, 422]
    assert "revoke it" in next(one for one in answers if one.status == 422).json["detail"]
    assert shop_site.rows("SELECT count(*) FROM token") == [(1,)]


@pytest.mark.parametrize("wanted", [{"name": "a b"}, {"name": ""}, {"expires": "0s"}, {"expires": "9999d"}])
def test_a_token_that_cannot_be(still_site: Site, wanted: dict[str, str]):
    given = {"name": "jo", "role": "viewer"} | wanted
    assert still_site.client().post(f"{PREFIX}/token/create/preview", given).status in {400, 422}


# -- browsers


def signed_in(client: Client, token: str) -> tuple[str, str]:
    """The cookie and the CSRF token."""
    answer = client.post("/sign-in", {"token": token}, origin=f"{client.scheme}://{client.headers['Host']}")
    assert answer.status == 200, answer.body
    return answer.headers["set-cookie"], answer.json["csrf"]


def test_a_session_stands_for_its_token(shop_site: Site, clock: VirtualClock):
    client = shop_site.client(TOKENS)
    cookie, csrf = signed_in(client, create(shop_site))
    assert {"HttpOnly", "Path=/", "SameSite=strict", "Max-Age=43200"} <= set(cookie.split("; "))
    sent = {"cookie": cookie.partition(";")[0]}
    assert client.get(UNITS, **sent).status == 200
    assert wake(client, **sent).status == 403  # a page of somebody else's has the cookie, and not this
    assert wake(client, **sent, x_csrf_token="0" * 64).status == 403
    assert wake(client, **sent, x_csrf_token=csrf).status == 200
    assert sent["cookie"].split("_")[2] not in str(shop_site.rows("SELECT * FROM web_session"))
    assert client.get(UNITS, cookie="penstock=pss_x").status == 401

    assert client.post("/sign-out", {}, **sent).status == 403
    gone = client.post("/sign-out", {}, **sent, x_csrf_token=csrf)
    assert (gone.status, "Max-Age=0" in gone.headers["set-cookie"]) == (204, True)
    assert client.get(UNITS, **sent).status == 401


def test_a_session_ends_with_its_life_and_with_its_token(shop_site: Site, clock: VirtualClock):
    client = shop_site.client(TOKENS)
    short, _ = signed_in(client, create(shop_site, "short", expires="1h"))
    assert "Max-Age=3600" in short
    long, _ = signed_in(client, create(shop_site, "long"))
    clock.advance(timedelta(hours=11).total_seconds())
    assert client.get(UNITS, cookie=short.partition(";")[0]).status == 401
    assert client.get(UNITS, cookie=long.partition(";")[0]).status == 200
    clock.advance(timedelta(hours=2).total_seconds())
    assert client.get(UNITS, cookie=long.partition(";")[0]).status == 401


def test_a_form_signs_in_and_leads_to_a_page_of_ours_alone(shop_site: Site):
    client, token = shop_site.client(TOKENS), create(shop_site)
    for wanted, led in [("/units?at=1", "/units?at=1"), ("//evil", "/"), ("https://evil", "/"), ("/\\evil", "/")]:
        body = urlencode({"token": token, "next": wanted}).encode()
        answer = client.call("POST", "/sign-in", body, {"Content-Type": FORM})
        assert (answer.status, answer.headers["location"]) == (303, led)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (urlencode([(f"a{number}", "1") for number in range(30)]).encode(), FORM),
        (b'{"token": "\xff"}', "application/json"),
        (b'{"token": 5}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b'{"token": "\\ud800"}', "application/json"),
    ],
)
def test_what_is_no_attempt_to_sign_in_is_refused(still_site: Site, body: bytes, kind: str):
    answer = still_site.client(TOKENS).call("POST", "/sign-in", body, {"Content-Type": kind})
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")


def test_over_https_the_cookie_is_bound_to_the_host(shop_site: Site):
    web = WebSettings(hosts=("desk.example.com",), trusted_proxies=("10.0.0.0/8",))
    client = shop_site.client(
        web, client="10.0.0.2", headers={"Host": "desk.example.com", "X-Forwarded-Proto": "https"}
    )
    client.scheme = "https"
    cookie, _ = signed_in(client, create(shop_site))
    assert cookie.startswith("__Host-penstock=pss_")
    assert {"Secure", "Path=/"} <= set(cookie.split("; "))
    assert client.get(UNITS, cookie=cookie.partition(";")[0]).headers["strict-transport-security"]
    plain = shop_site.client(web, client="10.0.0.2", headers={"Host": "desk.example.com"})
    assert plain.post("/sign-in", {"token": "x"}).status == 403


def test_attempts_to_sign_in_are_limited(shop_site: Site, clock: VirtualClock):
    client, token = shop_site.client(TOKENS), create(shop_site)
    for _ in range(10):
        assert client.post("/sign-in", {"token": "pst_x"}).status == 401
    refused = client.post("/sign-in", {"token": token})
    assert (refused.status, refused.headers["retry-after"]) == (429, "301")
    clock.advance(301)
    assert client.post("/sign-in", {"token": token}).status == 200


def test_failed_attempts_of_others_keep_nobody_out(shop_site: Site):
    client, token = shop_site.client(TOKENS), create(shop_site)
    for number in range(200):
        Client(client.app, client=f"127.1.0.{number}").post("/sign-in", {"token": "pst_x"})
    assert client.post("/sign-in", {"token": token}).status == 200


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::7", 429),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", 401),
        ("10.0.0.1", "10.0.0.2", 401),
        ("::1", "::2", 429),
        ("::ffff:10.0.1.1", "10.0.1.1", 429),
        ("::ffff:10.0.2.1", "::ffff:10.0.2.2", 401),
        ("x" * 200, "x" * 200, 429),
    ],
)
def test_a_network_of_ipv6_is_one_address(still_site: Site, first: str, second: str, status: int):
    """As a trusted proxy names it."""
    client = still_site.client(WebSettings(trusted_proxies=("127.0.0.1",)))
    for _ in range(10):
        assert client.post("/sign-in", {"token": "pst_x"}, x_forwarded_for=first).status == 401
    assert client.post("/sign-in", {"token": "pst_x"}, x_forwarded_for=second).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": f"http://{HOME}"}, 200),
        ({"origin": f"http://{HOME}", "sec_fetch_site": "same-origin"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": f"https://{HOME}"}, 403),
        ({"origin": "http://127.0.0.1:8643"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
    ],
)
def test_a_page_of_another_origin_cannot_act(still_site: Site, headers: dict[str, str], status: int):
    client = still_site.client()
    assert wake(client, **headers).status == status
    with_token = wake(client, **bearer("pst_x"), **headers).status  # the origin is looked at before the token is
    assert with_token == (401 if status == 200 else 403)


# -- hosts, proxies and prefixes


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in (HOME, "localhost:8642", "LOCALHOST:8642", "[::1]:8642")),
        *((name, 421) for name in ("evil.example", "evil.example:8642", "localhost", "127.0.0.1:80", "", "[::1]")),
        *((name, 421) for name in ("localhost.evil:8642", "127.0.0.1:8642@evil", "desk.example.com")),
        *((name, 421) for name in ("localhost:08642x", f"localhost:{'1' * 5_000}", "127.0.0.1:8642, evil.example")),
    ],
)
def test_a_host_that_is_not_ours_is_refused(still_site: Site, host: str, status: int):
    answer = still_site.client().get("/healthz", Host=host)
    assert answer.status == status
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_configured_hosts(still_site: Site):
    client = still_site.client(WebSettings(hosts=("desk.example.com", "other.example:8443")))
    for host, status in [
        ("desk.example.com", 200),
        ("Desk.Example.com:9000", 200),
        ("other.example:8443", 200),
        ("other.example", 421),
        (HOME, 200),
    ]:
        assert client.get("/healthz", Host=host).status == status
    bound = still_site.client(bound=Bound("10.1.2.3", 8642))
    assert bound.get("/healthz", Host="10.1.2.3:8642").status == 200


def test_what_a_proxy_says_is_believed_of_trusted_ones_alone(shop_site: Site):
    web = WebSettings(hosts=("desk.example.com",), trusted_proxies=("10.0.0.2",))
    told = {"x_forwarded_host": "desk.example.com", "x_forwarded_proto": "https", "x_forwarded_for": "8.8.8.8, 9.9.9.9"}
    behind = shop_site.client(web, client="10.0.0.2", headers={"Host": "inside:1"})
    answer = behind.get("/healthz", **told)
    assert (answer.status, "strict-transport-security" in answer.headers) == (200, True)
    assert shop_site.client(web, client="10.0.0.3", headers={"Host": "inside:1"}).get("/healthz", **told).status == 421
    for _ in range(10):
        behind.post("/sign-in", {"token": "x"}, **told)
    assert behind.post("/sign-in", {"token": "x"}, **told).status == 429
    other = {**told, "x_forwarded_for": "9.9.9.9, 8.8.8.8"}  # the last one counts: the others anybody can write
    assert behind.post("/sign-in", {"token": "x"}, **other).status == 401


@pytest.mark.parametrize("stripped", [True, False])
def test_below_a_prefix(still_site: Site, stripped: bool):
    client = still_site.client(WebSettings(root_path="/a/penstock"))
    start = "" if stripped else "/a/penstock"
    assert client.get(f"{start}/healthz").status == 200
    page = client.get(f"{start}{UNITS}?machine=order&limit=3")
    assert page.headers["link"] == '</a/penstock/api/v1/units?machine=order&limit=3&after=order%3Aacme%2F2>; rel="next"'
    assert client.get(f"{start}{PREFIX}/openapi.json").json["servers"] == [{"url": "/a/penstock/api/v1"}]
    assert client.get(f"{start}/nothing").status == 404
    assert client.get("/a/penstocks/healthz").status == 404
