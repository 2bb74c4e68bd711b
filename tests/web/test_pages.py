"""The desk's pages: what they show, what they do, who may, and that nothing from outside comes alive in them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from datetime import date, timedelta

import pytest

from penstock.api.problems import problem_of
from penstock.api.routes import places
from penstock.app.person import user
from penstock.model.clock import instant_text
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.declare import Operation, Reading
from penstock.raw.paths import PartitionKey
from penstock.raw.reader import NotReady, PartitionStatus
from penstock.settings.kernel import WebSettings
from tests.support import shop
from tests.support.shop import S
from tests.support.web import Answer, Client, Site

TOKENS = WebSettings(require_token=True)
HOSTILE = '<script>alert(1)</script>\x1b[31m\u202etxt.exe\x00 & "quoted"'
RESET = "/do/shop/reset"


@pytest.fixture
def browser(shop_site: Site) -> Client:
    """A person at this machine."""
    return shop_site.browser()


@pytest.fixture(scope="session")
def still_browser(still_site: Site) -> Client:
    return still_site.browser()


def page(answer: Answer, status: int = 200) -> str:
    assert answer.status == status, answer.text[:2_000]
    assert answer.headers["content-type"].startswith("text/html")
    return answer.text


def field(text: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', text)
    assert found is not None, text
    return found[1]


def addresses(still_site: Site) -> Iterator[str]:
    yield from (
        "/",
        "/forecast",
        "/forecast?at=2026-11-15",
        "/machines/order",
        "/machines/schedule",
        "/lifecycles/shop",
        "/lifecycles/kernel",
    )
    yield from ("/units/order/acme/1", "/units/order/acme/4", "/machines/order?window=30d")
    for place in places(still_site.app):
        yield f"/{'do' if isinstance(place.declared, Operation) else 'read'}{place.path}"


def test_every_page_is_shown_and_none_needs_another_host(still_site: Site, still_browser: Client):
    for address in addresses(still_site):
        text = page(still_browser.get(address))
        for link in re.findall(r'(?:href|src|action)="([^"]*)"', text):
            assert link.startswith(("/", "?", "#")), (address, link)
        assert " style=" not in text, address
        assert not re.search(r"<script(?! src=)", text), address
        assert not re.search(r"\son[a-z]+=", text), address


def test_links_of_the_overview_lead_somewhere(still_browser: Client):
    seen = set()
    for address in ("/", "/machines/order", "/units/order/acme/4"):
        for link in re.findall(r'href="(/[^"]*)"', page(still_browser.get(address))):
            if link not in seen and not link.startswith("/static/"):
                seen.add(link)
                assert still_browser.get(link.replace("&amp;", "&")).status in (200, 303), link
    assert len(seen) > 15


def test_the_first_page_is_small(still_browser: Client):
    text = page(still_browser.get("/"))
    styled = [still_browser.get(link).body for link in re.findall(r'"(/static/[^"]+)"', text)]
    assert len(styled) == 3
    assert sum(len(gzip.compress(one)) for one in (text.encode(), *styled)) < 30 * 1024


def test_static_files_are_kept_for_ever_under_an_address_that_changes(still_browser: Client):
    link = re.search(r'"(/static/desk.css\?[0-9a-f]{10})"', page(still_browser.get("/")))
    assert link is not None
    answer = still_browser.get(link[1])
    assert (answer.status, answer.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in answer.headers["cache-control"]
    assert still_browser.get("/static/../pages.py").status == 404
    assert still_browser.get("/static/nothing.css").status == 404


def test_the_overview_says_first_what_needs_a_person(shop_site: Site, browser: Client):
    text = page(browser.get("/"))
    assert "<h1>One thing needs you. The rest moves by itself.</h1>" in text
    assert "2 dead letters of order" in text
    for name in ("acme/4", "acme/9"):
        shop_site.ledger.move(Ref("order", name), S.OPEN, actor=Actor.OPERATOR, who="t", reason="found")
    assert "<h1>Nothing needs you." in page(browser.get("/"))
    shop_site.ledger.gates.pause("accounting/acme", "operator:ana", "their holiday")
    text = page(browser.get("/"))
    assert "accounting/acme is paused" in text
    assert "their holiday" in text


def test_a_machine_is_drawn_with_its_counts_and_every_state_is_a_link(shop_site: Site, browser: Client):
    shop_site.ledger.move(Ref("order", "acme/5"), S.PACKING, actor=Actor.WORKER, who="w", reason="begun")
    text = page(browser.get("/machines/order"))
    drawn = text[
        text.index("<svg", text.index('class="diagram"')) : text.index("</svg>", text.index('class="diagram"'))
    ]
    for state in shop.S:
        found = re.search(rf'<a href="([^"]*)" class="state {state.meaning}[^"]*"><title>{state}: ', drawn)
        assert found is not None, state
        assert f"status={state}" in found[1]
    assert re.search(r'begin <tspan class="n">1</tspan>', drawn)
    assert "pipe used" in drawn


def test_what_was_shown_is_done_in_the_name_of_who_asked(shop_site: Site, browser: Client):
    form = page(browser.get(RESET))
    csrf = field(form, "csrf")
    shown = page(browser.send(RESET, csrf=csrf, act="preview", status="lost", reason="a customer called"))
    assert "Reset 2 orders" in shown
    assert "order:acme/4" in shown
    digest = field(shown, "digest")
    assert "lost" in shop_site.states().values()  # nothing is changed yet
    given = {"csrf": csrf, "act": "apply", "status": "lost", "reason": "a customer called"}
    stale = page(browser.send(RESET, **given, digest="0" * 64), 409)
    assert "lost" in shop_site.states().values()
    assert "preview" in stale or "shown" in stale
    assert "Done: reset 2 orders" in page(browser.send(RESET, **given, digest=digest))
    assert "lost" not in shop_site.states().values()
    sql = "SELECT actor, reason FROM transition_log WHERE unit_id = 'acme/4' AND to_status = 'open'"
    assert shop_site.rows(sql) == [(f"operator:{user()}", "a customer called")]


def test_a_form_without_its_token_or_reason_does_nothing(shop_site: Site, browser: Client):
    before = shop_site.states()
    assert browser.send(RESET, act="preview", status="lost", reason="x").status == 403
    assert browser.send(RESET, csrf="f" * 64, act="apply", status="lost", reason="x").status == 403
    csrf = field(page(browser.get(RESET)), "csrf")
    assert "reason" in page(browser.send(RESET, csrf=csrf, act="preview", status="lost"), 400)
    wrong = page(browser.send(RESET, csrf=csrf, act="preview", status="nowhere", reason="x"), 400)
    assert "status" in wrong
    assert shop_site.states() == before


def test_a_viewer_sees_everything_and_can_do_nothing(shop_site: Site):
    from tests.api.test_access import bearer, create

    token = bearer(create(shop_site, "eve", "viewer"))
    client = shop_site.browser(TOKENS)
    for address in (RESET, "/units/order/acme/4", "/machines/order", "/lifecycles/shop", "/read/dead"):
        text = page(client.get(address, **token))
        assert "this needs the role operator; yours is viewer" in text, address
        assert not re.search(r'<a class="(?:button|link)" href="[^"]*/do/', text), address
    refused = client.call("POST", RESET, b"act=preview", {**token, "Content-Type": "application/x-www-form-urlencoded"})
    assert refused.status == 403


def test_who_is_not_known_is_asked_to_sign_in(shop_site: Site):
    client = shop_site.browser(TOKENS)
    text = page(client.get("/machines/order"), 401)
    assert 'action="/sign-in"' in text
    assert 'name="next" value="/machines/order"' in text
    assert "acme" not in text


def test_the_past_is_shown_from_history_and_nothing_can_be_done_in_it(shop_site: Site, browser: Client):
    ref = Ref("order", "acme/5")
    shop_site.ledger.move(ref, S.PACKING, actor=Actor.WORKER, who="w", reason="begun")
    born, begun = (
        row[0] for row in shop_site.rows("SELECT at FROM transition_log WHERE unit_id = 'acme/5' ORDER BY seq")
    )
    moment = shop_site.ledger.clock.now() - timedelta(days=40)
    long_ago = page(browser.get(f"/machines/order?at={instant_text(moment)}"))
    assert re.search(r"<b>0</b> units", long_ago)
    assert "nothing can be done in the past" in long_ago
    assert "data-past" in long_ago
    unit = page(browser.get(f"/units/order/acme/5?at={instant_text(moment)}"))
    assert "It was not there yet." in unit
    now = page(browser.get("/units/order/acme/5"))
    assert "begun" in now
    assert (born, begun) != (None, None)
    assert "2026-13-99" in page(browser.get("/?at=2026-13-99"), 400)


def test_a_unit_and_a_form_that_cannot_be_are_refused(shop_site: Site):
    browser = shop_site.browser()
    assert browser.get("/units/order/%00").status == 400
    many = browser.send("/do/shop/reset", **{f"a{number}": "1" for number in range(1_001)})
    assert (many.status, "1,000 fields at most" in many.text) == (400, True)


def test_text_from_outside_is_inert_everywhere(shop_site: Site, browser: Client):
    shop_site.ledger.move(
        Ref("order", "acme/5"), S.PACKING, actor=Actor.WORKER, who="w", reason=HOSTILE.replace("\0", "")
    )
    shop_site.ledger.gates.pause("accounting/acme", "operator:ana", HOSTILE.replace("\0", ""))
    shown = ["/", "/units/order/acme/5", "/machines/order", "/read/gates", "/read/history?unit=order:acme/5"]
    shown.append("/read/units?because=%3Cscript%3Ealert(1)%3C/script%3E%00%1b")
    shown.append("/machines/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    for address in shown:
        text = browser.get(address).text
        assert "<script>alert" not in text, address
        assert not re.search("[\x00\x1b\u202e]", text), address
    assert "&lt;script&gt;" in browser.get("/units/order/acme/5").text


def test_what_is_not_there_is_told_as_a_page(still_browser: Client):
    for address in ("/machines/nothing", "/read/nothing", "/do/nothing", "/lifecycles/nothing", "/nothing"):
        assert 'role="alert"' in page(still_browser.get(address), 404), address
    assert "No unit" in page(still_browser.get("/units/order/acme/99"), 404)


def test_search_finds_units_machines_and_gates(still_browser: Client):
    led = {
        "order:acme/1": "/units/order/acme/1",
        "order": "/machines/order",
        "accounting/acme": "/read/gates?gate=accounting%2Facme",
        "fell down": "/read/units?because=fell+down",
    }
    for text, address in led.items():
        answer = still_browser.get(f"/find?q={text.replace(' ', '+')}")
        assert (answer.status, answer.headers["location"]) == (303, address)


def test_pages_below_a_path_lead_below_it(shop_site: Site):
    client = shop_site.browser(WebSettings(root_path="/penstock"))
    text = page(client.get("/"))
    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', text)
    assert len(links) > 10
    assert all(link.startswith("/penstock/") for link in links), links


def test_a_page_never_writes(shop_site: Site, browser: Client):
    def everything() -> list[list[tuple[object, ...]]]:
        names = [name for (name,) in shop_site.rows("SELECT table_name FROM machine_definition ORDER BY 1")]
        return [
            shop_site.rows(f"SELECT * FROM {name} ORDER BY 1")
            for name in (*names, "gate", "event_log", "transition_log")
        ]

    before = everything()
    for place in places(shop_site.app):
        if isinstance(place.declared, Reading):
            browser.get(f"/read{place.path}")
    for address in ("/", "/machines/order", "/units/order/acme/1", "/lifecycles/shop"):
        browser.get(address)
    assert everything() == before


def test_signing_in_below_a_path_leads_back_below_it(shop_site: Site):
    client = shop_site.browser(WebSettings(root_path="/penstock", require_token=True))
    assert field(page(client.get("/penstock/machines/order"), 401), "next") == "/penstock/machines/order"


def test_what_is_not_ready_is_a_conflict_and_no_failure_of_the_server():
    key = PartitionKey("google_ads", "1111111111", "campaign_daily", date(2026, 10, 19))
    problem = problem_of(NotReady(PartitionStatus(key)))
    assert problem.status == 409
