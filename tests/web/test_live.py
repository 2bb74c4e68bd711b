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
from tests.support.web import Site
from tests.support.world import World


async def listen(application: Any, wanted: int, done: asyncio.Event) -> list[str]:
    """Take events until there are so many of them."""
    heard: list[str] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": "/live", "raw_path": b"/live", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"127.0.0.1:8642")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8642),
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
        assert heard.count("event: changed\ndata: order\n\n") == 1
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


def test_what_is_seen_late_is_named_late(postgres_url: str):
    """A number is drawn before its transaction ends, and others end first."""
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
