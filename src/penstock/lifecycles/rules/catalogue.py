"""The canonical catalogue: read whole from an account's shop now and then, and what previews read of it.

Only a whole reading counts: a variant that the last one did not see is left out of previews, and its row stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.ledger.schema.columns import document
from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.tables import catalogue, catalogue_reading
from penstock.model.clock import instant
from penstock.model.outcome import MAX_ROWS, Write
from penstock.worker.job import JobResult

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor
    from penstock.lifecycles.rules.shop import Configured
    from penstock.operations.reader import Reader
    from penstock.worker.flow import Io

_COLUMNS = (
    "account, variant_id, product_id, sku, title, vendor, tags, currency, unit_amount, compare_at_amount, cost_amount,"
    " reference_amount, source_updated_at, seen_in, seen_at"
)
_READ = (
    "variant_id, product_id, sku, title, vendor, tags, currency, unit_amount, compare_at_amount, cost_amount,"
    " reference_amount"
)
_AT_ONCE = 2_500
_READ_COST = 20
"""What reading it costs, about: a bulk read, and some looks whether it is there."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The last whole reading of an account's catalogue."""

    number: int
    variants: int
    read_at: datetime


def standing_of(reader: Reader | Ledger, account: str) -> Standing | None:
    """The last whole reading of an account's catalogue; None: there was none."""
    sql = "SELECT number, variants, read_at FROM catalogue_reading WHERE account = :account"
    for number, variants, read_at in reader.read(lambda cursor: cursor.rows(sql, account=account)):
        moment = instant(read_at)
        assert moment is not None  # noqa: S101 - the column is NOT NULL
        return Standing(number, variants, moment)
    return None


def items_after(cursor: Cursor, account: str, whole: int, after: str | None, limit: int) -> list[Item]:
    """Variants of the last whole reading in the order of their ids, from the one after `after` on."""
    rows = cursor.rows(
        f"SELECT {_READ} FROM catalogue WHERE account = :account AND variant_id > :after AND seen_in >= :whole"
        " ORDER BY variant_id LIMIT :n",
        account=account,
        after=after or "",
        whole=whole,
        n=limit,
    )
    return [_item(row) for row in rows]


def _item(row: Sequence[Any]) -> Item:
    variant, product, sku, title, vendor, tags, currency, amount, compare_at, cost, reference = row
    return Item(
        variant_id=variant,
        product_id=product,
        sku=sku,
        title=title,
        vendor=vendor,
        tags=tuple(document(tags) if isinstance(tags, str) else tags),
        price=Price(amount, compare_at, currency),
        cost=cost,
        reference=reference,
    )


def shared_skus(cursor: Cursor, account: str, whole: int) -> frozenset[str]:
    """SKUs that more than one variant has: nobody can tell which one is meant."""
    sql = (
        "SELECT sku FROM catalogue WHERE account = :account AND seen_in >= :whole AND sku <> ''"
        " GROUP BY sku HAVING count(*) > 1"
    )
    return frozenset(str(row[0]) for row in cursor.rows(sql, account=account, whole=whole))


async def read_catalogue(own: Configured, io: Io) -> JobResult:
    """Read the whole catalogue of an account. What an earlier reading left undone is written again."""
    number, seen = await io.ledger(lambda ledger: _newest(ledger, own.name)) + 1, 0
    async with io.gate(own.gate, own.shop.costs(reads=_READ_COST, writes=0)):
        async for items in own.shop.catalogue():
            for start in range(0, len(items), _AT_ONCE):
                part = [_row(own.name, item, number, io.now()) for item in items[start : start + _AT_ONCE]]
                await io.ledger(partial(_keep, Write(catalogue, part, columns=_COLUMNS.split(", "))))
            seen += len(items)
    row = {"account": own.name, "number": number, "variants": seen, "read_at": io.now()}
    return JobResult(f"{seen:,} variants read", writes=[Write(catalogue_reading, [row])])


def _newest(ledger: Ledger, account: str) -> int:
    """The newest reading of an account's catalogue, whole or not: what a broken one saw does not count for the next."""
    sql = "SELECT max(seen_in) FROM catalogue WHERE account = :account"
    return int(ledger.read(lambda cursor: cursor.rows(sql, account=account))[0][0] or 0)


def _keep(write: Write, ledger: Ledger) -> None:
    ledger.write([write])


def _row(account: str, item: Item, number: int, now: datetime) -> list[Any]:
    price = item.price
    return [
        account,
        item.variant_id,
        item.product_id,
        item.sku,
        item.title,
        item.vendor,
        list(item.tags),
        price.currency,
        price.amount,
        price.compare_at,
        item.cost,
        item.reference,
        item.updated_at,
        number,
        now,
    ]


def follow_run(ledger: Ledger, account: str, run_id: UUID) -> None:
    """The catalogue learns what a run has set; where it was read meanwhile, that stands. Twice comes to the same."""
    after = ""
    mine = f"rule_run_id = {ledger.database.sql.identifier('run')} AND status = 'APPLIED'"
    sql = f"SELECT id, before_json, after_json FROM rule_target WHERE {mine} AND id > :after ORDER BY id LIMIT :n"
    while rows := ledger.read(partial(_applied, sql, str(run_id), after)):
        prices = [(str(one), _kept(before), _kept(wanted)) for one, before, wanted in rows]
        _set_prices(ledger, account, prices)
        after = str(rows[-1][0])


def _applied(sql: str, run: str, after: str, cursor: Cursor) -> list[Any]:
    return cursor.rows(sql, run=run, after=after, n=MAX_ROWS)


def _kept(price: Any) -> Price:
    return Price.from_json(document(price) if isinstance(price, str) else price)


def _set_prices(ledger: Ledger, account: str, prices: Iterable[tuple[str, Price, Price]]) -> None:
    from penstock.ledger.store.data import update_unchanged

    rows = [
        [account, variant, before.amount, before.compare_at, after.amount, after.compare_at]
        for variant, before, after in prices
    ]
    amounts = ("unit_amount", "compare_at_amount")
    sql, given = update_unchanged(
        ledger.database,
        catalogue,
        key=("account", "variant_id"),
        compared=amounts,
        changed=amounts,
        alike={},
        rows=rows,
    )
    ledger.database.write(lambda cursor: cursor.run(sql, **given))
