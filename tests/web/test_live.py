"""Pages hear of changes: one look for all, a word to each, nothing while nobody watches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.web import live
from tests.support.shop import S
from tests.support.web import Site


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


def test_the_more_watch_the_less_often_they_are_told():
    assert [live.pause_after(watching) for watching in (1, 10, 100)] == [1.0, 1.0, 10.0]
