"""What needs a person, search, views, the slider, and what a list offers."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from penstock.model.clock import instant_text
from penstock.model.errors import PenstockError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.settings.kernel import WebSettings
from tests.support.web import Client, Site


@pytest.fixture
def browser(shop_site: Site) -> Client:
    return shop_site.browser()


@pytest.fixture(scope="module")
def still_browser(still_site: Site) -> Client:
    return still_site.browser()


def test_what_waits_for_whom(shop_site: Site, browser: Client):
    ledger = shop_site.ledger
    ledger.gates.pause("accounting/acme", "operator:ana", "their holiday")
    found = shop_site.client().get("/api/v1/needs").json
    assert [(one["who"], one["what"]) for one in found["rows"]] == [
        ("you", "2 dead letters of order"),
        ("itself", "accounting/acme is paused until somebody resumes it"),
        ("itself", "2 order units are waiting"),
    ]
    assert found["counts"] == {"need a person": 1, "wait by themselves": 2}
    text = browser.get("/").text
    cause = re.search(r"penstock dead show (\w+)", text)
    assert cause is not None
    for address in (f"/do/dead/retry?cause={cause[1]}", f"/do/dead/dismiss?cause={cause[1]}"):
        assert f'href="{address}"' in text


def test_an_alert_that_fires_needs_a_person_until_somebody_takes_it_on(shop_site: Site, browser: Client):
    from penstock.operations.alerts.machine import A, Alert

    now = shop_site.clock.now()
    alert = Alert(policy="stale_flow", subject="order", severity="warning", says="nothing moves", since=now)
    shop_site.ledger.birth([alert], actor=Actor.WORKER, who="watch")
    text = browser.get("/").text
    assert "nothing moves" in text
    assert "/do/alerts/ack?alerts=stale_flow%2Forder" in text
    assert re.search(r'Alerts<span class="mark fault end"></span><span class="n fault">1</span>', text)
    shop_site.ledger.move(
        Ref("alert", "stale_flow/order"), A.ACKNOWLEDGED, actor=Actor.OPERATOR, who="ana", reason="mine"
    )
    assert "nothing moves" not in browser.get("/").text


def test_the_menu_counts_dead_letters(still_browser: Client):
    assert re.search(
        r'Dead letters<span class="mark fault end"></span><span class="n fault">2</span>', still_browser.get("/").text
    )


def test_dead_letters_are_retried_and_dismissed_by_cause(still_browser: Client):
    text = still_browser.get("/read/dead").text
    cause = re.search(r'href="/read/dead/show\?cause=(\w+)"', text)
    assert cause is not None
    for verb in ("retry", "dismiss"):
        assert f'href="/do/dead/{verb}?cause={cause[1]}"' in text


def test_what_a_list_is_asked_with_goes_along_to_what_is_done(still_browser: Client):
    text = still_browser.get("/read/units?machine=order&status=lost&limit=1").text
    assert "Act on all that match" in text
    assert 'href="/do/units/park?machine=order&amp;status=lost"' in text
    assert "data-list" in text


def test_search_finds_by_a_piece_of_a_name(shop_site: Site):
    client = shop_site.client()
    rows = client.get("/api/v1/find?text=ACME/1").json["rows"]
    assert [row["name"] for row in rows] == ["order:acme/1", "order:acme/10"]
    assert client.get("/api/v1/find?text=order:acme/10").json["rows"][0]["status"] == "open"
    assert client.get("/api/v1/find?text=%25").json["rows"] == []
    assert client.get("/api/v1/find?text=%20").status == 422
    browser = shop_site.browser()
    assert browser.get("/find?q=acme/10").headers["location"] == "/units/order/acme/10"
    assert browser.get("/find?q=acme").headers["location"] == "/read/find?text=acme"


def test_named_views_are_in_the_menu(still_site: Site):
    client = still_site.browser(WebSettings(views={"Lost": "/read/units?machine=order&status=lost"}))
    assert '<a href="/read/units?machine=order&amp;status=lost">Lost' in client.get("/").text


@pytest.mark.parametrize(
    "address", ["//evil.example", "https://evil.example", "javascript:alert(1)", "/a b", "/\\evil"]
)
def test_a_view_leads_nowhere_else(address: str):
    with pytest.raises((ValueError, PenstockError), match="must be a page of the desk"):
        WebSettings(views={"Bad": address})


def test_the_slider_leads_to_the_past_without_a_script(still_site: Site, still_browser: Client):
    text = still_browser.get("/machines/order").text
    slider = re.search(r'<input type="range" name="at" min="(\d+)" max="(\d+)" step="3600" value="(\d+)"', text)
    assert slider is not None
    first, last, stands = map(int, slider.groups())
    assert first < stands <= last
    assert "data-past" in still_browser.get(f"/machines/order?at={first}").text
    assert "data-past" not in still_browser.get(f"/machines/order?at={last}").text
    menu = still_browser.get(f"/?at={first}").text
    assert re.search(r'href="/lifecycles/shop\?at=', menu)


def test_the_way_to_the_past_keeps_what_a_list_was_asked_for(still_browser: Client):
    text = still_browser.get("/read/units?machine=order&status=lost&after=order:acme/1").text
    forms = re.findall(r"<form(?: class=\"slide\")?>(.*?)</form>", text, re.DOTALL)
    assert len(forms) == 2, "the slider, and the field beside it"
    for form in forms:
        assert (
            '<input type="hidden" name="machine" value="order"><input type="hidden" name="status" value="lost">' in form
        )
        assert "after" not in form, "another moment has other pages"
    assert 'href="?machine=order&amp;status=lost"' in text, "the bar of today"
    back = still_browser.get("/read/units?machine=order&at=2026-01-01").text
    assert '<a class="link nowrap" href="/read/units?machine=order">back to now</a>' in back
    for address in ("/units/order/acme/1", "/machines/order?window=30d", "/lifecycles/shop", "/read/gates", "/"):
        assert 'type="range"' in still_browser.get(address).text, address
    assert 'type="range"' not in still_browser.get("/read/machines").text, "it has no past"


def test_the_overview_of_the_past_says_what_needed_a_person(shop_site: Site, browser: Client):
    clock = shop_site.clock
    shop_site.ledger.gates.pause("accounting/acme", "operator:ana", "their holiday")
    then = clock.now() + timedelta(milliseconds=2)
    while clock.now() <= then + timedelta(milliseconds=2):
        pass
    shop_site.ledger.gates.resume("accounting/acme", "operator:ana")
    for name in ("acme/4", "acme/9"):
        shop_site.ledger.move(Ref("order", name), "open", actor=Actor.OPERATOR, who="ana", reason="found")
    assert "<h1>Nothing needs you." in browser.get("/").text
    text = browser.get(f"/?at={instant_text(then)}").text
    assert ": one thing needed a person.</h1>" in text
    assert "2 dead letters of order" in text
    assert "accounting/acme is paused" in text
    assert "their holiday" in text
    assert not re.search(r'href="/do/', text)
    (cause,) = re.findall(r'href="(/read/dead/show[^"]+)"', text)
    assert "order:acme/4" in browser.get(cause.replace("&amp;", "&")).text


def test_a_list_without_rows_says_so(still_browser: Client):
    assert "No alerts: all is well" in still_browser.get("/read/alerts").text
    assert "0 firing" not in still_browser.get("/read/alerts").text
    assert "Nothing matches these filters." in still_browser.get("/read/units?machine=alert").text


def test_a_form_offers_nothing_that_only_a_terminal_has():
    from penstock.lifecycles.queries.showing import ShowParameters as QueryWanted
    from penstock.lifecycles.rules.readings import TargetsFilter
    from penstock.lifecycles.rules.showing import ShowParameters
    from penstock.web.forms import form_fields

    assert [one.name for one in form_fields(ShowParameters, {}, {"at"})] == ["run"], "--watch stays until the run ends"
    assert [one.name for one in form_fields(QueryWanted, {}, {"at"})] == ["query"]
    assert "after" not in {one.name for one in form_fields(TargetsFilter, {})}, "nobody types a cursor"


def test_a_form_begins_with_what_is_filled_in(still_browser: Client):
    text = still_browser.get("/do/units/park?machine=order").text
    first, others = text.split('<details class="others">')
    assert 'name="machine" value="order"' in first
    assert 'name="older_than"' in others
    assert "<details" not in still_browser.get("/do/gates/pause?gate=x").text, "there are few"


def test_a_page_that_keeps_no_past_says_so(still_browser: Client):
    now = "This page shows how things stand now."
    assert f"It shows what is declared. {now}" in still_browser.get("/read/machines?at=2026-01-01").text
    assert f"This has no history. {now}" in still_browser.get("/read/shop/orders?at=2026-01-01").text, "nobody says why"
    text = still_browser.get("/read/units?machine=order&at=2026-01-01").text
    assert now not in text
    assert "order:acme/1" not in text


def test_a_machine_tells_of_its_guards_and_of_changes_by_sql(shop_site: Site, browser: Client):
    text = browser.get("/machines/order").text
    assert "guards in the database <b>intact</b>" in text
    assert "<b>0</b> changes by sql" in text
    drop = "DROP TRIGGER penstock_order_guard" + (" ON shop_order" if shop_site.url.startswith("postgres") else "")
    shop_site.ledger.database.write(lambda cursor: cursor.run(drop))
    shop_site.ledger.database.write(
        lambda cursor: cursor.run(
            "UPDATE shop_order SET status = 'sent', version = version + 1 WHERE unit_id = 'acme/4'"
        )
    )
    text = browser.get("/machines/order").text
    assert "wrong with the guards" in text
    assert "<b>1</b> changes by sql" in text
    assert "lost → sent" in text


def test_what_cannot_be_done_with_a_unit_says_why_in_words(still_browser: Client):
    assert "penstock units park order:acme/1" in still_browser.get("/units/order/acme/1").text
    past = still_browser.get("/units/order/acme/1?at=2026-01-01").text
    assert '<small class="muted">nothing can be done in the past' in past
