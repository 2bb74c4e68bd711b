"""Acting with a browser, on PostgreSQL: what was shown is done, its history names who did it; and who may not."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from penstock.app.discover import load
from penstock.app.person import user
from penstock.ledger.ledger import Ledger
from penstock.settings.file import FILE
from tests.browser.conftest import Opens, token_of
from tests.support.chromium import Person
from tests.support.crawl import pages
from tests.support.fleet import until
from tests.support.staged import fill, serving

pytestmark = pytest.mark.timeout(300)  # the first one stages a ledger
WHY = "the customer has called"


def rows(folder: Path, sql: str, **given: Any) -> list[tuple[Any, ...]]:
    with Ledger.open(load(folder / FILE, environment={}).configuration.ledger_url()) as ledger:
        return ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **given)])


def done_by(folder: Path, machine: str) -> list[tuple[Any, ...]]:
    """What people did with units of a machine for that reason: actor and the state they are in since."""
    sql = "SELECT actor, to_status FROM transition_log WHERE machine = :machine AND reason LIKE :why"
    return rows(folder, sql, machine=machine, why=f"%{WHY}%")


@pytest.fixture
def person(acting: str, opens: Opens) -> Person:
    """Somebody at this machine."""
    return opens(acting)


def act(page: Page, **given: str) -> None:
    """Fill the form, look at what would be done, do it."""
    for name, text in (given | {"reason": WHY}).items():
        page.locator(f"form.fields [name={name}]").fill(text)
    page.get_by_role("button", name="Show what would be done").click()
    expect(page.get_by_text("What would be done", exact=True)).to_be_visible()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("Done:")


def run_of(folder: Path, status: str) -> str:
    ((run,),) = rows(folder, "SELECT unit_id FROM rule_run WHERE status = :status AND kind = 'apply'", status=status)
    return str(run)


def test_all_dead_letters_of_a_cause_are_retried_from_the_overview(acting_folder: Path, person: Person):
    page = person.go("/")
    need = page.locator(".need", has_text="dead letters of invoice")
    need.get_by_role("link", name="Retry…", exact=True).click()
    act(page)
    expect(page.get_by_role("status")).to_contain_text("3")
    assert done_by(acting_folder, "invoice") == [(f"operator:{user()}", "QUEUED")] * 3


def test_a_price_change_is_approved_and_another_is_rolled_back(acting_folder: Path, person: Person):
    waits = run_of(acting_folder, "PREVIEW")
    act(person.go(f"/do/rules/approve?run={waits}"))
    assert rows(acting_folder, "SELECT approved_by FROM rule_run WHERE unit_id = :run", run=waits) == [(user(),)]
    partly = run_of(acting_folder, "PARTIAL")
    act(person.go(f"/do/rules/rollback?run={partly}"))
    assert {actor for actor, _ in done_by(acting_folder, "rule_run")} == {f"operator:{user()}"}


def test_a_gate_is_paused_and_its_history_says_by_whom(acting_folder: Path, person: Person):
    act(person.go("/do/gates/pause"), gate="accounting/acme")
    page = person.go("/read/gates/history?gate=accounting/acme")
    expect(page.locator("main")).to_contain_text(f"operator:{user()}")
    expect(page.locator("main")).to_contain_text(WHY)
    sql = "SELECT held_by FROM gate WHERE gate_id = 'accounting/acme'"
    assert rows(acting_folder, sql) == [(f"operator:{user()}",)]


def test_an_alert_is_acknowledged_by_the_keyboard_alone(acting_folder: Path, person: Person):
    page = person.go("/do/alerts/ack?alerts=dead_letters/invoice")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    page.keyboard.press("Enter")
    to(page, "[name=reason]")
    page.keyboard.type(WHY)
    page.keyboard.press("Enter")
    expect(page.get_by_text("What would be done", exact=True)).to_be_visible()
    to(page, "button:has-text('Do it')")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Done:")
    assert done_by(acting_folder, "alert") == [(f"operator:{user()}", "acknowledged")]


def to(page: Page, wanted: str) -> None:
    """By Tab alone; whatever has the focus on the way shows it."""
    for _ in range(80):
        page.keyboard.press("Tab")
        focus = page.locator(":focus")
        if focus.count():
            style = focus.evaluate("one => getComputedStyle(one).outlineStyle + getComputedStyle(one).outlineWidth")
            assert style not in {"none", "none0px", "solid0px"}, focus.evaluate("one => one.outerHTML")
            if page.locator(f"{wanted}:focus").count():
                return
    raise AssertionError(wanted)


def test_the_search_field_is_one_key_away(person: Person):
    page = person.go("/")
    page.keyboard.press("/")
    page.keyboard.type("invoice:acme/013")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("invoice:acme/013")


def test_counts_change_without_a_reload(acting_folder: Path, person: Person):
    page = person.go("/machines/invoice")
    loads: list[str] = []
    page.on("framenavigated", lambda frame: loads.append(frame.url))
    tab = page.locator(".tabs a", has_text="QUEUED")
    expect(tab).to_have_count(1)
    before = int(re.sub(r"\D", "", tab.inner_text()))
    expect(page.locator(".live")).to_have_text("live")
    page.locator("#at").focus()
    page.keyboard.type("2026")
    fill(acting_folder, 5)
    expect(tab).to_have_text(f"QUEUED {before + 5}")
    expect(page.locator("#at")).to_have_value("2026")  # what is being typed stays
    assert loads == []


def test_what_changes_before_a_page_listens_is_shown(acting_folder: Path, person: Person):
    """Its stream is held back until something has changed, and nothing changes afterwards."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    person.context.route("**/live?*", hold)
    page = person.go("/machines/invoice")
    while not held:  # Playwright tells of it while it waits
        page.wait_for_timeout(20)
    tab = page.locator(".tabs a", has_text="QUEUED")
    before = int(re.sub(r"\D", "", tab.inner_text()))
    fill(acting_folder, 2, "early")
    held[0].continue_()
    expect(tab).to_have_text(f"QUEUED {before + 2}")


def regions_asked(page: Page) -> list[set[str]]:
    """The regions of each fetch, as they are made."""
    asked: list[set[str]] = []

    def keep(request: Any) -> None:
        query = parse_qs(urlsplit(request.url).query)
        if "regions" in query:
            asked.append({*query["regions"][0].split(",")})

    page.on("request", keep)
    return asked


def test_only_what_follows_a_change_is_fetched(acting_folder: Path, acting: str, opens: Opens):
    overview, other = opens(acting).go("/"), opens(acting).go("/machines/report")
    asked, elsewhere = regions_asked(overview), regions_asked(other)
    for page in (overview, other):
        expect(page.locator(".live")).to_have_text("live")
    legend = overview.locator("[data-region=flow-invoices] .legend a", has_text="QUEUED")
    before = int(re.sub(r"\D", "", legend.inner_text()))
    overview.locator("[data-region=flow-invoices] h3 a").focus()
    with other.expect_request(re.compile("regions=")):
        fill(acting_folder, 3, "region")
    expect(legend).to_have_text(f"{before + 3} QUEUED")
    expect(overview.locator("[data-region=flow-invoices] h3 a")).to_be_focused()
    assert {"flow-invoices", "needs", "latest", "menu", "clock"} in asked
    assert {"menu", "clock"} in elsewhere


def test_a_list_says_how_many_are_new_and_shows_them_when_asked(acting_folder: Path, person: Person):
    page = person.go("/read/units?machine=invoice&because=born&limit=1000")
    page.get_by_text("Change the filters").click()
    expect(page.locator(".live")).to_have_text("live")
    before = page.locator("tbody tr").count()
    fill(acting_folder, 4, "listed")
    expect(page.locator(".fresh")).to_have_text("4 new")
    expect(page.locator("tbody tr")).to_have_count(before)
    page.locator(".fresh").click()
    expect(page.locator("tbody tr")).to_have_count(before + 4)
    expect(page.locator(".fresh")).to_have_count(0)
    expect(page.locator("details.ask")).to_have_attribute("open", "")  # what was opened stays open


def test_a_viewer_sees_no_action_that_is_enabled(acting_folder: Path, acting: str, opens: Opens):
    token = token_of(acting_folder, "viewer")
    found = pages(acting, token, most=80)
    person = opens(acting, token=token)
    kinds: Mapping[str, str] = {link.split("/")[1].partition("?")[0]: link for link in found}
    assert {"read", "units", "machines", "lifecycles"} <= kinds.keys()
    for link in ["/", "/do/dead/retry", *kinds.values()]:
        page = person.go(link)
        assert page.locator('.column a[href*="/do/"]').count() == 0, link
        assert page.locator(".column form[method=post] button:not([disabled])").count() == 0, link
    for link, text in found.items():
        body = text.partition("<main")[2]
        assert body, link
        assert not re.search(r'href="[^"]*/do/', body), link
        assert not re.search(r"<button class=\"button first\">(?:Do it|Show what)", body), link


def test_up_serves_the_same_beside_its_worker(acting_folder: Path, opens: Opens):
    """Its worker has nobody to speak to; the desk says that it is there."""
    with serving(acting_folder, "up", name="up") as address:
        page = opens(address).go("/read/workers")
        until(lambda: page.reload() and page.locator("tbody tr").count(), "a worker is shown")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.close()


def fail_many(folder: Path, many: int) -> None:
    """So many invoices fail, by the edges that lead there."""
    fill(folder, many, "bulk")
    with Ledger.open(load(folder / FILE, environment={}).configuration.ledger_url()) as ledger:
        for source, target in (("QUEUED", "SENDING"), ("SENDING", "FAILED")):
            sql = (
                f"UPDATE invoice SET status = '{target}', due_at = NULL"
                f" WHERE status = '{source}' AND unit_id LIKE '%bulk%'"
            )
            assert ledger.database.write(operator.methodcaller("run", sql)) == many


def test_thousands_are_acted_on_at_once_and_that_is_cancelled(acting_folder: Path, acting: str, opens: Opens):
    """From a list, for all that match and not only for the page that is shown."""
    fail_many(acting_folder, 1_500)
    page = opens(acting).go("/read/units?machine=invoice&status=FAILED&limit=20")
    expect(page.locator("tbody tr")).to_have_count(20)
    ((matching,),) = rows(acting_folder, "SELECT count(*) FROM invoice WHERE status = 'FAILED'")
    page.get_by_role("link", name="Move…", exact=True).click()
    act(page, to="QUEUED")
    page.get_by_role("status").get_by_role("link").click()
    expect(page.locator("h1")).to_have_text(re.compile(r"^Bulk actions: show [0-9a-f]+$"))
    expect(page.locator("main")).to_contain_text(f"{matching:,}")
    assert rows(acting_folder, "SELECT count(*) FROM invoice WHERE status = 'FAILED'") == [
        (matching,)
    ]  # no worker runs
    page.get_by_role("link", name="Cancel…").click()
    act(page)
    assert done_by(acting_folder, "bulk_action")[-1] == (f"operator:{user()}", "cancelled")


def test_thousands_are_acted_on_while_somebody_watches(acting_folder: Path, acting: str, opens: Opens):
    """A worker carries it out; the page shows how far it has come, without a reload."""
    page = opens(acting).go("/do/units/move?machine=invoice&status=FAILED")
    act(page, to="QUEUED")
    page.get_by_role("status").get_by_role("link").click()
    expect(page.locator("main .pill.work")).to_have_text("running")
    with serving(acting_folder, "worker", "--web", name="bulk"):
        expect(page.locator("main .pill.done")).to_have_text("done")
    ((total, moved, skipped),) = rows(
        acting_folder, "SELECT total, moved, skipped FROM bulk_action WHERE status = 'done'"
    )
    assert moved + skipped == total
    assert moved > 0
    assert total >= 1_500
