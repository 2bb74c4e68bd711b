"""Pages hear of changes: one look for all, a word to each, nothing while nobody watches."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock.ledger import roll_up
from penstock.model.clock import Rng, instant_text
from penstock.model.machine import Actor
from penstock.model.secrets import TOKEN, draw
from penstock.model.unit import Ref
from penstock.settings.kernel import WebSettings
from penstock.web import live
from tests.support.machines import invoice, partition
from tests.support.shop import S
from tests.support.web import Client, Site
from tests.support.world import World


async def listen(application: Any, wanted: int, done: asyncio.Event, *, since: str = "", told: str = "") -> list[str]:
    """Take events until there are so many of them; `since` is a page's mark, `told` that of the last word."""
    heard: list[str] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": "/live", "raw_path": b"/live", "query_string": f"since={since}".encode() if since else b"",
        "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8642),
        "headers": [(b"host", b"127.0.0.1:8642"), *([(b"last-event-id", told.encode())] if told else [])],
    }  # fmt: skip

    async def receive() -> Any:
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        heard.append(message.get("body", b"").decode())
        if sum("changed" in one for one in heard) >= wanted:
            done.set()

    asked = asyncio.create_task(application(scope, receive, send))
    await asyncio.wait_for(done.wait(), 20)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    return heard


@pytest.mark.timeout(60)
def test_everybody_who_watches_hears_of_a_change(shop_site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.05)
    application = shop_site.application(pages=True)

    async def main() -> list[list[str]]:
        first, second = asyncio.Event(), asyncio.Event()
        watching = [asyncio.create_task(listen(application, 1, one)) for one in (first, second)]
        await asyncio.sleep(0.5)
        move = ("order", "acme/5")
        await asyncio.to_thread(
            lambda: shop_site.ledger.move(Ref(*move), S.PACKING, actor=Actor.WORKER, who="w", reason="begun")
        )
        return await asyncio.gather(*watching)

    for heard in asyncio.run(main()):
        assert sum(one.endswith("event: changed\ndata: order\n\n") for one in heard) == 1
        assert "retry: 3000\n\n" in heard


@pytest.mark.timeout(60)
def test_who_is_let_in_no_longer_is_told_nothing_more(shop_site: Site, monkeypatch: pytest.MonkeyPatch):
    """A token is revoked while a page of its session watches: the stream ends before the next word."""
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.05)
    shop_site.web = WebSettings(require_token=True)
    database, now = shop_site.ledger.database, shop_site.clock.now()
    drawn, revoked = draw(Rng(), TOKEN), f"UPDATE token SET revoked_at = '{instant_text(now)}'"
    made = (
        "INSERT INTO token (id, name, role, hash, created_at, created_by, expires_at) VALUES"
        " (:id, 'jo', 'viewer', :hash, :now, 'me', :ends)"
    )
    ends = instant_text(now + timedelta(days=1))
    database.write(lambda cursor: cursor.run(made, id=drawn.id, hash=drawn.hash, now=instant_text(now), ends=ends))
    application, heard = shop_site.application(pages=True), list[bytes]()

    async def main() -> None:
        told = asyncio.Event()

        async def send(message: Any) -> None:
            heard.append(message.get("body", b""))
            if b"changed" in heard[-1]:
                told.set()

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": "/live", "raw_path": b"/live", "query_string": b"", "root_path": "",
            "headers": [(b"host", b"127.0.0.1:8642"), (b"authorization", f"Bearer {drawn.text}".encode())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8642),
        }  # fmt: skip
        stream = asyncio.create_task(application(scope, asyncio.Future, send))
        moves = iter([S.PACKING, S.SENT])

        async def move() -> None:
            target = next(moves)
            await asyncio.to_thread(
                lambda: shop_site.ledger.move(Ref("order", "acme/5"), target, actor=Actor.WORKER, who="w", reason="on")
            )

        await asyncio.sleep(0.5)
        await move()
        await told.wait()
        await asyncio.to_thread(database.write, lambda cursor: cursor.run(revoked))
        await move()
        await stream

    asyncio.run(main())
    assert sum(b"changed" in one for one in heard) == 1


def heard_of(application: Any, **since: str) -> str:
    """The first word on a new stream."""
    heard = asyncio.run(listen(application, 1, asyncio.Event(), **since))
    return next(one for one in heard if "changed" in one)


def moved(site: Site, name: str, target: S) -> None:
    site.ledger.move(Ref("order", name), target, actor=Actor.WORKER, who="w", reason="on")


def mark_on(text: str) -> str:
    found = re.search(r'data-mark="([^"]+)"', text)
    assert found is not None
    return found[1]


@pytest.mark.timeout(60)
def test_what_changes_between_a_page_and_its_stream_is_told_at_once(shop_site: Site):
    """Nothing changes after the stream is open: without the mark nobody would ever hear of it."""
    application = shop_site.application(pages=True)
    page = Client(application).get("/machines/order").text
    moved(shop_site, "acme/5", S.PACKING)
    word = heard_of(application, since=mark_on(page))
    assert word.endswith("event: changed\ndata: order\n\n")
    shop_site.ledger.gates.pause("accounting/acme", "operator:ana", "to look")
    told = re.search(r"id: (\S+)\n", word)
    assert told is not None
    again = heard_of(application, since=mark_on(page), told=told[1])
    assert again.endswith("event: changed\ndata: gates\n\n"), "a stream that is opened anew goes on where it ended"
    assert heard_of(application, since="what is that?").endswith("data: *\n\n")


@pytest.mark.timeout(60)
def test_a_page_of_now_is_told_only_what_comes(shop_site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.05)
    application = shop_site.application(pages=True)
    moved(shop_site, "acme/5", S.PACKING)
    since = mark_on(Client(application).get("/").text)

    async def main() -> list[str]:
        done = asyncio.Event()
        watching = asyncio.create_task(listen(application, 1, done, since=since))
        await asyncio.sleep(0.5)
        assert not done.is_set(), "it was told what it shows"
        await asyncio.to_thread(shop_site.ledger.gates.pause, "accounting/acme", "operator:ana", "to look")
        return await watching

    assert [one.partition("data: ")[2] for one in asyncio.run(main()) if "changed" in one] == ["gates\n\n"]


@pytest.mark.timeout(60)
def test_no_answer_from_before_serves_who_was_told(shop_site: Site):
    """Answers are kept for a minute here. The word that something changed has a mark; what is asked with it is new."""
    shop_site.fresh = 60.0
    browser = shop_site.browser()
    page = browser.get("/machines/order").text
    assert "</span>open 2</a>" in page
    moved(shop_site, "acme/5", S.PACKING)
    word = heard_of(browser.app, since=mark_on(page))
    told = word.partition("id: ")[2].partition("\n")[0]
    asked = "/machines/order?regions=page"
    assert "</span>open 2</a>" in browser.get(asked).text
    assert "</span>open 1</a>" in browser.get(f"{asked}&told={told}").text
    moved(shop_site, "acme/10", S.PACKING)
    # What is kept for this role was read before the first page was.
    assert mark_on(browser.get("/machines/order").text) == mark_on(page)


def test_the_first_look_is_the_mark_of_a_page():
    first, second = live.Mark(1.0, "7-1.1.0-"), live.Mark(2.0, "7-1.2.0-")
    assert live.first_of([second, first]) == first.text, "a gate adds no row to the history"
    assert live.first_of([first, live.Mark(2.0, "")]) == live.UNREAD
    assert live.first_of([]) == ""


def test_a_mark_that_cannot_be_read_is_of_nothing(world: World):
    world.born(invoice("1"))
    assert live.EVERYTHING in looked(world, live.Changes.since(live.UNREAD))


def test_the_more_watch_the_less_often_they_are_told():
    assert [live.pause_after(watching) for watching in (1, 10, 100)] == [1.0, 1.0, 10.0]


def looked(world: World, changes: live.Changes) -> set[str]:
    return world.ledger.read(changes.names)


def test_a_look_names_the_machines_that_moved(world: World):
    changes = live.Changes()
    world.born(invoice("1"))
    assert looked(world, changes) == set()  # at first nothing is new
    assert looked(world, changes) == set()
    world.born(invoice("2"), invoice("3"))
    assert looked(world, changes) == {"invoice"}
    world.born(partition(source="a"), invoice("4"))
    roll_up.roll_up(world.ledger.database)
    assert looked(world, changes) == {"invoice", "partition"}
    world.ledger.gates.pause("accounting/acme", "operator:ana", "to look")
    assert looked(world, changes) == {live.GATES}
    assert looked(world, changes) == set()


def test_very_much_is_everything(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(live, "_MANY", 3)
    changes = live.Changes()
    looked(world, changes)
    world.born(*(invoice(str(number)) for number in range(5)))
    assert looked(world, changes) == {live.EVERYTHING}
    assert looked(world, changes) == set()


@pytest.mark.parametrize("marked", [False, True])
def test_what_is_seen_late_is_named_late(postgres_url: str, marked: bool):
    """A number is drawn before its transaction ends, and others end first; a mark says that it is missing."""
    world = World(postgres_url)
    changes = live.Changes()
    looked(world, changes)
    with psycopg.connect(postgres_url) as slow:
        slow.execute(
            "INSERT INTO invoice (unit_id, tenant, number, status, amount_minor)"
            " VALUES ('acme/2', 'acme', '2', 'QUEUED', 1)"
        )
        world.born(partition(source="a"))
        assert looked(world, changes) == {"partition"}
        changes = live.Changes.since(changes.mark) if marked else changes
        assert looked(world, changes) == set()
        slow.commit()
    assert looked(world, changes) == {"invoice"}
    assert looked(world, changes) == set()
    world.close()


def test_a_page_is_made_of_regions_and_those_are_sent_that_are_asked_for(still_site: Site):
    whole = still_site.browser().get("/").text
    regions = re.findall(r'data-region="([^"]+)"', whole)
    assert {"menu", "clock", "needs", "latest", "time", "next", "gates"} < {*regions}
    assert len(regions) == len({*regions})
    for asked in (["gates"], ["menu", "latest"], ["nothing"]):
        part = still_site.browser().get(f"/?regions={','.join(asked)}").text
        assert {*re.findall(r'data-region="([^"]+)"', part)} == {*asked} & {*regions}
        assert "<html" not in part
    follows = dict(re.findall(r'data-region="([^"]+)" data-follows="([^"]*)"', whole))
    assert follows["gates"] == live.GATES
    assert any("order" in names.split() for region, names in follows.items() if region.startswith("flow-"))


@pytest.mark.parametrize("path", ["/machines/order", "/read/units?machine=order", "/units/order/acme/5", "/forecast"])
def test_regions_of_any_page_can_be_asked_for(still_site: Site, path: str):
    asked = f"{path}{'&' if '?' in path else '?'}regions=page"
    part = still_site.browser().get(asked)
    assert part.status == 200
    assert re.findall(r'data-region="([^"]+)"', part.text) == ["page"]
    assert "regions=" not in part.text  # no link takes it along
