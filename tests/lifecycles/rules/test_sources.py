"""Accounts over real connectors: what reaches the other side, and what becomes of others' edits meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from penstock.connectors.csv_catalog.client import CsvCatalogue
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.sources import PriceList
from penstock.model.clock import VirtualClock
from penstock.model.errors import InDoubt
from penstock.worker.executor import InlineExecutor
from tests.support.price_shop import euros
from tests.support.prices import START


def test_a_currency_that_changes_is_noticed(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("sku,price,currency\nA,20.00,EUR\n")
    shop = PriceList(CsvCatalogue(path, InlineExecutor().run), VirtualClock(START))

    async def test() -> None:
        assert await shop.read(["A"]) == {"A": euros(2_000)}
        path.write_text("sku,price,currency\nA,20.00,USD\nB,1.00,USD\n")
        assert await shop.read(["A"]) == {"A": Price(2_000, None, "USD")}

    asyncio.run(test())


def test_a_price_that_was_set_after_the_look_is_not_overwritten(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("sku,price,currency\nA,20.00,EUR\n")
    shop = PriceList(CsvCatalogue(path, InlineExecutor().run), VirtualClock(START))

    async def test() -> None:
        before = await shop.read(["A"])
        path.write_text("sku,price,currency\nA,77.00,EUR\n")
        with pytest.raises(InDoubt):
            await shop.write("A", {"A": euros(1_800)}, before)
        assert await shop.read(["A"]) == {"A": euros(7_700)}
        assert await shop.write("A", {"A": euros(1_800)}, {"A": euros(7_700)}) == {}

    asyncio.run(test())
    assert path.read_text() == "sku,price,currency\nA,18.00,EUR\n"
