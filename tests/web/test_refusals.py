"""What is refused, over real HTTP: a program is told as a program, a person by a page, and both what to do."""

from __future__ import annotations

import html
import re
import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from penstock.ledger.ledger import Ledger
from penstock.settings.kernel import WebSettings
from tests.api.test_access import bearer, create
from tests.support.served import Served, served
from tests.support.web import Answer, Site

TOKENS = WebSettings(require_token=True)
DOCUMENT, PAGE = "application/problem+json", "text/html; charset=utf-8"
WRONG = 'Bearer realm="penstock", error="invalid_token"'


@pytest.fixture
def desk(still_site: Site) -> Iterator[Served]:
    """A desk that asks everybody for a token."""
    with served(still_site, TOKENS) as made:
        yield made


def told(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.headers["content-type"]


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/units", "/machines/order"])
def test_who_is_not_known_is_challenged_at_every_address(desk: Served, path: str):
    kind = PAGE if path == "/machines/order" else DOCUMENT
    for headers, challenge in [({}, 'Bearer realm="penstock"'), (bearer("pst_x"), WRONG)]:
        answer = desk.ask("GET", path, **headers)
        assert (*told(answer), answer.headers["www-authenticate"]) == (401, kind, challenge)


def test_a_stranger_is_not_told_how_far_the_ledger_is(desk: Served):
    text = desk.ask("GET", "/machines/order").text
    assert 'data-mark=""' in text


def test_a_token_that_lets_nobody_in_is_called_so(desk: Served):
    said = "this token is not valid here (ended, revoked or mistyped); 'penstock token list' shows those that are"
    assert desk.ask("GET", "/api/v1/units", **bearer("pst_x")).json["detail"] == said
    assert desk.post("/sign-in", {"token": "pst_x"}).json["detail"] == said
    for scheme in ({}, {"authorization": "Basic pst_x"}):
        said = desk.ask("GET", "/api/v1/units", **scheme).json["detail"]
        assert said == "this needs a token; send 'Authorization: Bearer TOKEN', or sign in with a browser"
    assert "This token is not valid here" in desk.ask("GET", "/", **bearer("pst_x")).text


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/sign-in", "/machines/order"])
def test_a_method_that_an_address_does_not_take_is_told_with_those_that_it_takes(desk: Served, path: str):
    answer = desk.ask("DELETE", path)
    assert told(answer) == (405, PAGE if path == "/machines/order" else DOCUMENT)
    assert set(answer.headers["allow"].split(", ")) == ({"POST"} if path == "/sign-in" else {"GET", "HEAD"})


def test_whoever_tried_too_often_hears_for_how_long_to_wait(desk: Served):
    for _ in range(10):
        wrong = desk.post("/sign-in", {"token": "pst_x"})
        assert (*told(wrong), wrong.headers["www-authenticate"]) == (401, DOCUMENT, WRONG)
    for answer, kind in [
        (desk.post("/sign-in", {}), DOCUMENT),
        (desk.send("/sign-in", token="pst_x"), PAGE),
    ]:
        assert told(answer) == (429, kind)
        assert 290 < int(answer.headers["retry-after"]) <= 301


def test_a_ledger_that_is_away_is_told_with_when_to_ask_again(still_site: Site):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and nobody listens there
        url = f"postgresql://nobody@127.0.0.1:{nobody.getsockname()[1]}/nothing"
        with served(still_site, opens=lambda: Ledger.open(url, still_site.app.machines)) as away:
            for path, kind in [("/readyz", DOCUMENT), ("/metrics", DOCUMENT), ("/machines/order", PAGE)]:
                answer = away.ask("GET", path)
                assert (*told(answer), answer.headers.get("retry-after")) == (503, kind, "5"), path
            assert away.ask("GET", "/healthz").body == b"alive\n"


VIEW = "/read/units?machine=order&status=lost&because=a+b%26c&at=2026-11-15T00%3A00%3A00Z"


def wanted(page: str) -> str:
    """Where the form of a page leads after signing in."""
    found = re.search(r'name="next" value="([^"]*)"', page)
    assert found is not None, page
    return html.unescape(found[1])


def test_signing_in_leads_to_the_view_that_was_asked_for(shop_site: Site):
    token = create(shop_site)
    with served(shop_site, TOKENS) as desk:
        first = desk.ask("GET", f"{VIEW}&regions=rows")
        assert (told(first), wanted(first.text)) == ((401, PAGE), VIEW)
        again = desk.send("/sign-in", token="pst_x", next=VIEW)
        assert (told(again), wanted(again.text)) == ((401, PAGE), VIEW)
        done = desk.send("/sign-in", token=token, next=wanted(again.text))
        assert (done.status, done.headers["location"]) == (303, VIEW)
        assert desk.ask("GET", VIEW, cookie=done.headers["set-cookie"].partition(";")[0]).status == 200
        odd = f"/units/order/{quote('acme/a b?c')}"
        assert wanted(desk.ask("GET", odd).text) == odd
        over = desk.send("/sign-out", csrf="x", next="")
        assert (over.status, wanted(over.text)) == (401, "/")


def test_the_page_to_sign_in_says_how_a_token_is_made(desk: Served):
    text = html.unescape(desk.ask("GET", "/").text)
    assert "'penstock token create NAME --role operator'" in text


def test_nobody_is_asked_to_sign_in_where_the_cookie_would_be_sent_in_the_clear(still_site: Site):
    web = WebSettings(hosts=("desk.lan", "localhost:9000"), trusted_proxies=("127.0.0.1",))
    with served(still_site, web) as desk:
        first = desk.ask("GET", "/", host="desk.lan")
        assert told(first) == (401, PAGE)
        assert "Signing in needs https, because the cookie would be sent in the clear" in first.text
        assert ("<form" in first.text, 'name="token"' in first.text) == (False, False)
        refused = desk.post("/sign-in", {"token": "pst_x"}, host="desk.lan")
        assert (*told(refused), refused.json["detail"][:24]) == (403, DOCUMENT, "signing in needs https, ")
        for headers in ({"host": "desk.lan", "x_forwarded_proto": "https"}, {"host": "localhost:9000"}):
            assert 'name="token"' in desk.ask("GET", "/", **headers).text


def test_loopback_on_another_port_is_ours_where_it_is_among_the_hosts(still_site: Site):
    with served(still_site) as desk:
        refused = desk.ask("GET", "/healthz", host="localhost:9000")
        assert (refused.status, "add it to hosts in [web]" in refused.json["detail"]) == (421, True)
    with served(still_site, WebSettings(hosts=("localhost:9000", "127.0.0.1:9000", "[::1]:9000"))) as desk:
        for host in ("localhost:9000", "127.0.0.1:9000", "[::1]:9000", str(desk.bound)):
            assert desk.ask("GET", "/healthz", host=host).status == 200, host
        assert desk.ask("GET", "/healthz", host="localhost:9001").status == 421
