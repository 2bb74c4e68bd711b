"""What the pricing rules in force make of a feed's records: read and reckoned, nothing written.

Tables are named here, not loaded: `harvest prices` answers without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.lifecycles.harvest.feed import Unmappable
from penstock.lifecycles.harvest.pricing import WORDS, Pricer, Rule, compile_rules, digest
from penstock.model.outcome import MAX_ROWS

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor
    from penstock.operations.reader import Reader

SAMPLE = 10
#: What a record's price is made of. While these are as they were read, a price that was made of them is right.
COMPARED = (*WORDS, "carat", "supplier_price", "pricing_digest")
READ = (*COMPARED, "price", "pricing_rule_id")
AMOUNTS = ("carat", "supplier_price", "price")


@dataclass(frozen=True, slots=True)
class Records:
    """The canonical records of a feed, by the name of their table and the column that tells them apart."""

    feed: str
    table: str = "diamonds"
    identity: str = "supplier_stone_id"


@dataclass(frozen=True, slots=True)
class Change:
    """What a record costs and would cost, and by which rules. `why_not`: no price can be made; the old one stays."""

    record: str
    before: Decimal
    after: Decimal
    rule_before: int | None
    rule_after: int | None
    why_not: str | None = None


@dataclass(slots=True)
class Preview:
    """What pricing again would come to. `stale` are the records that were priced by other rules."""

    feed: str
    rules: int
    records: int
    stale: int = 0
    changed: int = 0
    unpriced: int = 0
    why_not: str | None = None
    sample: list[Change] = field(default_factory=list)


def rules_in_force(cursor: Cursor, feed: str) -> list[Rule]:
    """The rules of a feed that are in force, as the table has them. Raises BadRule."""
    names = Rule.__slots__
    sql = f"SELECT {', '.join(names)} FROM pricing_rules WHERE active AND (feed IS NULL OR feed = :feed)"
    rules = [Rule.read(dict(zip(names, row, strict=True))) for row in cursor.rows(sql, feed=feed)]
    return sorted(rules, key=lambda rule: (rule.priority, rule.id))


def preview(reader: Ledger | Reader, records: Records) -> Preview:
    """Price every record that was priced by other rules, and change nothing. Raises BadRule."""
    rules, there = reader.read(lambda cursor: (rules_in_force(cursor, records.feed), count_records(cursor, records)))
    made, price, after = Preview(records.feed, len(rules), there), compile_rules(rules, records.feed), ""
    sql = (
        f"SELECT {columns(records)} FROM {records.table} WHERE feed = :feed AND {records.identity} > :after"
        f" AND pricing_digest <> :digest ORDER BY {records.identity} LIMIT {MAX_ROWS}"
    )
    given = {"feed": records.feed, "digest": digest(rules)}
    while rows := _rows(reader, sql, after=after, **given):
        after = rows[-1][0]
        for change in (change_of(row, price) for row in rows):
            made.stale += 1
            made.unpriced += change.why_not is not None
            made.why_not = made.why_not or change.why_not
            if change.before != change.after:
                made.changed += 1
                made.sample += [change] if len(made.sample) < SAMPLE else []
    return made


def _rows(reader: Ledger | Reader, sql: str, **given: Any) -> Sequence[Sequence[Any]]:
    return reader.read(lambda cursor: cursor.rows(sql, **given))


def columns(records: Records) -> str:
    """What is read of a record, for `change_of`."""
    return ", ".join(f"CAST({n} AS TEXT)" if n in AMOUNTS else n for n in (records.identity, *READ))


def change_of(row: Sequence[Any], price: Pricer) -> Change:
    """What the rules make of a record that was read."""
    record, *read = row
    values = dict(zip(READ, read, strict=True))
    before, rule = Decimal(values["price"]), values["pricing_rule_id"]
    values["supplier_price"] = Decimal(values["supplier_price"])
    values["carat"] = None if values["carat"] is None else Decimal(values["carat"])
    try:
        price(values)
    except Unmappable as error:
        return Change(str(record), before, before, rule, rule, f"{record}: {error}")
    return Change(str(record), before, values["price"], rule, values["pricing_rule_id"])


def count_records(cursor: Cursor, records: Records, *, unlike: str | None = None) -> int:
    """How many records there are; `unlike`: of those that were priced by rules of another digest."""
    sql = f"SELECT count(*) FROM {records.table} WHERE feed = :feed"
    if unlike is None:
        return int(cursor.rows(sql, feed=records.feed)[0][0])
    sides = [cursor.rows(f"{sql} AND pricing_digest {side} :digest", feed=records.feed, digest=unlike) for side in "<>"]
    return sum(int(rows[0][0]) for rows in sides)
