"""`penstock.run`: a program inside somebody's own event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import App
from penstock.ledger.ledger import Ledger
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.settings.typed import ConfigError
from tests.support.post_app import FOLDER, Order, lifecycle, noted


async def _until(condition: Any, task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            assert not task.done(), task.exception()
            await asyncio.sleep(0.05)


def test_it_makes_the_ledger_works_and_ends_with_its_task(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    app = App(lifecycle)
    settings = {"ledger": {"url": ledger_url}, "worker": {"lease": "4s", "renew": "1s"}}

    async def main() -> None:
        task = asyncio.create_task(penstock.run(app, settings))
        beside = 0

        def ready() -> bool:
            try:
                Ledger.open(ledger_url, app.machines).close()
            except Exception:  # noqa: BLE001 - it is being made
                return False
            return True

        await _until(ready, task)
        with Ledger.open(ledger_url, app.machines) as ledger:
            ledger.birth([Order(name="1", due_at=ledger.clock.now())], actor=Actor.API, who="test")
            await _until(lambda: noted(tmp_path, "audit") == ["paid:1"], task)
            beside += 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            live = ledger.read(lambda cursor: cursor.rows("SELECT count(*) FROM worker WHERE reaped_at IS NULL"))
            held = ledger.read(lambda cursor: cursor.rows("SELECT count(*) FROM order_ WHERE claimed_by IS NOT NULL"))
        assert (beside, live[0][0], held[0][0]) == (1, 0, 0), "it has said goodbye, and holds nothing"

    asyncio.run(main())


def test_what_cannot_be_configured_is_told_before_anything_is_made(tmp_path: Path) -> None:
    place = tmp_path / "never.db"
    settings = {"ledger": {"url": f"sqlite:///{place}"}, "worker": {"leese": "4s"}}
    with pytest.raises(ConfigError, match=r"did you mean worker\.lease"):
        asyncio.run(penstock.run(App(lifecycle), settings))
    with pytest.raises(UsageError):
        asyncio.run(penstock.run(App(lifecycle), config=tmp_path / "nowhere.toml"))
    assert not place.exists()
