"""The canonical catalogue: read whole from an account's shop now and then, and what previews read of it.

A reading goes page by page and is remembered, so that a crash goes on where it was. Only a whole one counts: a variant
that the last whole reading did not see is left out of previews, and its row stays.
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
from penstock.worker.schedule import JobResult

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
_PAGES_AT_ONCE = 200
"""So many pages are read by one run of the job; the next goes on at once."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far an account's catalogue was read. `whole` is the last reading that came to its end."""

    number: int
    after: str | None
    variants: int
    started_at: datetime
    whole: int | None
    whole_variants: int | None
    whole_at: datetime | None

    @property
    def under_way(self) -> bool:
        return self.whole != self.number


def standing_of(reader: Reader | Ledger, account: str) -> Standing | None:
    """How the catalogue of an account stands; None: it was never read."""
    sql = (
        "SELECT number, after, variants, started_at, whole, whole_variants, whole_at FROM catalogue_reading"
        " WHERE account = :account"
    )
    rows = reader.read(lambda cursor: cursor.rows(sql, account=account))
    if not rows:
        return None
    number, after, variants, started, whole, whole_variants, whole_at = rows[0]
    begun = instant(started)
    assert begun is not None  # noqa: S101 - the column is NOT NULL
    return Standing(number, after, variants, begun, whole, whole_variants, instant(whole_at))


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
    """Read the whole catalogue of an account, or go on with it. What is written twice comes to the same."""
    standing = await io.ledger(lambda ledger: standing_of(ledger, own.name))
    if standing is None or not standing.under_way:
        number = 1 if standing is None else standing.number + 1
        whole = (None, None, None) if standing is None else (standing.whole, standing.whole_variants, standing.whole_at)
        standing = Standing(number, None, 0, io.now(), *whole)
    for _ in range(_PAGES_AT_ONCE):
        async with io.gate(own.gate):
            page = await own.shop.page(standing.after)
        seen = standing.variants + len(page.items)
        rows = [_row(own.name, item, standing.number, io.now()) for item in page.items]
        read = Standing(standing.number, page.next, seen, standing.started_at, *_whole(standing))
        write = Write(catalogue, rows, columns=_COLUMNS.split(", "))
        if page.next is None:
            done = Standing(read.number, None, seen, read.started_at, read.number, seen, io.now())
            says = f"{seen:,} variants read"
            return JobResult(says, writes=[write, _progress(own.name, done)])
        await io.ledger(partial(_keep, [write, _progress(own.name, read)]))
        standing = read
    return JobResult(f"{standing.variants:,} variants read so far", again=True)


def _keep(writes: Sequence[Write], ledger: Ledger) -> None:
    ledger.write(writes)


def _whole(standing: Standing) -> tuple[int | None, int | None, datetime | None]:
    return standing.whole, standing.whole_variants, standing.whole_at


def _progress(account: str, standing: Standing) -> Write:
    row = {
        "account": account,
        "number": standing.number,
        "after": standing.after,
        "variants": standing.variants,
        "started_at": standing.started_at,
        "whole": standing.whole,
        "whole_variants": standing.whole_variants,
        "whole_at": standing.whole_at,
    }
    return Write(catalogue_reading, [row])


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
