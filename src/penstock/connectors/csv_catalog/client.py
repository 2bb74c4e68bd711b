"""A price list in a CSV file as the other side: what Shopify's connector does with a store, with a file.

Updates that come while the file is being written wait, and go into the next rewrite together.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.connectors.csv_catalog.price_list import CHANGED, CatalogueMoved, Change, PriceList
from penstock.connectors.csv_catalog.rows import BadCatalogue
from penstock.connectors.prices import FREE, CataloguePage, Cost, Refusal, Shop, Variant, VariantPrice
from penstock.model import tenure
from penstock.model.errors import InDoubt, UsageError

__all__ = ["BadCatalogue", "CatalogueMoved", "CsvCatalogue", "Run"]

T = TypeVar("T")
_MOST_ITEMS = 10_000


class Run(Protocol):
    """Runs what blocks off the event loop, as `Io.run` does."""

    def __call__(self, work: Callable[..., T], *args: Any) -> Awaitable[T]: ...


class CsvCatalogue:
    """The price list at a path. `currency` is that of a file without such a column.

    Every call raises BadCatalogue for a file that is no price list, Fatal for one that may not be used, and Transient
    for one that is not there.
    """

    def __init__(self, path: Path, run: Run, *, currency: str | None = None) -> None:
        self._list = PriceList(path, currency)
        self._run = run
        self._waiting: list[_Update] = []
        self._writing: asyncio.Task[None] | None = None

    async def shop(self) -> Shop:
        """The currency of the file."""
        return await self._run(self._list.shop)

    async def catalogue_page(self, after: str | None, first: int) -> CataloguePage:
        """Rows in the order of the file. Raises CatalogueMoved where rows came or went since the page before."""
        if not 1 <= first <= _MOST_ITEMS:
            raise UsageError(f"a page of {first} rows cannot be asked for; it has 1 to {_MOST_ITEMS:,}")
        items, following = await self._run(self._list.page, after, first)
        return CataloguePage(items, following, FREE)

    async def variants(self, ids: Sequence[str]) -> tuple[dict[str, Variant], Cost]:
        """What those variants cost now; those that do not exist are left out."""
        return await self._run(self._list.variants, ids), FREE

    async def update(self, product_id: str, changes: Sequence[VariantPrice]) -> tuple[dict[str, Refusal | None], Cost]:
        """Set the prices of variants of one product: for each None where it was set, else why not.

        Raises Transient or Fatal where the file is as it was, and InDoubt where somebody else has set one of these
        prices meanwhile, which stays, or where the disk failed at the very end.
        """
        tenure.check()
        one = _Update([(product_id, change) for change in changes], tenure.HOLDER.get(), _future())
        self._waiting.append(one)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), context=tenure.apart())  # for others too
        outcome = await one.told
        if moved := [refusal.message for refusal in outcome if refusal is not None and refusal.code == CHANGED]:
            raise InDoubt(f"{moved[0]}; look again at what is set")
        return {change.variant_id: refusal for change, refusal in zip(changes, outcome, strict=True)}, FREE

    async def close(self) -> None:
        """Wait for what is being written."""
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        batch: list[_Update] = []
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                batch = [one for one in waiting if one.wanted()]
                if batch:
                    await self._write(batch)
        finally:
            self._writing = None
            for one in (*batch, *self._waiting):
                one.told.cancel()  # of those that were told nothing happens

    async def _write(self, batch: list[_Update]) -> None:
        try:
            outcome = iter(await self._run(self._list.write, [change for one in batch for change in one.changes]))
        except Exception as error:  # noqa: BLE001 - whoever waits hears of it
            for one in batch:
                if not one.told.done():
                    one.told.set_exception(copy.copy(error))  # a step writes on the error it gets
            return
        for one in batch:
            mine = [next(outcome) for _ in one.changes]
            if not one.told.done():
                one.told.set_result(mine)


@dataclass(frozen=True, slots=True, eq=False)
class _Update:
    """An update that waits, and whose step has to hold its unit still when it is written."""

    changes: Sequence[Change]
    holder: Callable[[], None] | None
    told: asyncio.Future[list[Refusal | None]]

    def wanted(self) -> bool:
        """Whether somebody waits for it, and may still write."""
        try:
            if self.holder is not None:
                self.holder()
        except asyncio.CancelledError:
            self.told.cancel()
        return not self.told.done()


def _future() -> asyncio.Future[list[Refusal | None]]:
    return asyncio.get_running_loop().create_future()
