"""Rows of data tables, made plain: checked against their table, and within what an outcome carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.ledger.schema.columns import holds_secret, plain, plain_column, plain_unseen
from penstock.ledger.store.statements import Columns
from penstock.model.errors import BrokenFlow, TooLarge
from penstock.model.outcome import MAX_BYTES, MAX_ROWS, MAX_VALUE, Update, Where, Write
from penstock.settings.redaction import PATTERNS, holds

if TYPE_CHECKING:
    from sqlalchemy import Table

_TEXTS = {str, type(None)}
_ENCODER = msgspec.json.Encoder()


def plain_value(ref: str, name: str, value: Any) -> Any:
    """The value made plain. Raises BrokenFlow or TooLarge, naming whose column it is."""
    try:
        return plain(value)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{ref}: {name} cannot be stored: {error}"
        raise (TooLarge if isinstance(error, TooLarge) else BrokenFlow)(msg) from error


def outcome_writes(ref: str, writes: Sequence[Write]) -> list[Write]:
    """The same with plain rows, as many as an outcome carries."""
    made = plain_writes(ref, writes)
    _check_size(ref, made)
    return made


def plain_writes(ref: str, writes: Sequence[Write]) -> list[Write]:
    """The same writes with plain rows."""
    made = []
    for w in writes:
        known_columns(ref, w.table, [*w.first, *([w.newer] if w.newer else ()), *(w.columns or ())])
        rows: Any = w.rows
        rows = plain_rows(ref, w.table, rows) if w.columns is None else _plain_lists(ref, w.table, w.columns, rows)
        made.append(Write(w.table, rows, w.on_conflict, w.newer, tuple(w.first), w.columns and tuple(w.columns)))
    return made


def plain_update(ref: str, amend: Update) -> Update:
    """The same with plain values."""
    known_columns(ref, amend.rows.table, amend.values)
    if not amend.values:
        raise BrokenFlow(f"{ref}: an update of {amend.rows.table.name} sets no column")
    values = {n: plain_value(ref, f"{amend.rows.table.name}.{n}", v) for n, v in amend.values.items()}
    return Update(plain_where(ref, amend.rows), values)


def plain_where(ref: str, rows: Where) -> Where:
    """The same with plain values. Raises BrokenFlow for what would mean a whole table."""
    name = rows.table.name
    known_columns(ref, rows.table, [*rows.where, *(part[0] for part in (rows.span, rows.among) if part)])
    if all(value is None for value in rows.where.values()):
        raise BrokenFlow(f"{ref}: say which rows of {name} are meant, by at least one value")
    where = {n: plain_value(ref, f"{name}.{n}", v) for n, v in rows.where.items()}
    span, among = rows.span, rows.among
    if span is not None:
        column, first, last = span
        span = (column, plain_value(ref, f"{name}.{column}", first), plain_value(ref, f"{name}.{column}", last))
    if among is not None:
        among = (among[0], [plain_value(ref, f"{name}.{among[0]}", v) for v in among[1]])
        if len(among[1]) > MAX_ROWS:
            listed = f"{len(among[1]):,} rows of {name} are listed"
            raise BrokenFlow(f"{ref}: {listed}; an outcome carries at most {MAX_ROWS:,}")
    return Where(rows.table, where, span, among)


def known_columns(ref: str, table: Table, names: Iterable[str]) -> None:
    """Raise BrokenFlow for a name that is no column of the table."""
    unknown = ", ".join(repr(n) for n in names if n not in table.columns)
    if unknown:
        msg = f"{ref}: {table.name} has no column {unknown}"
        raise BrokenFlow(msg)


def plain_rows(ref: str, table: Table, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a data table made plain, each in the order of the table's columns."""
    rows = rows if isinstance(rows, Sequence) else list(rows)
    make = plain if holds_secret(row.values() for row in rows) else plain_unseen
    shapes: dict[tuple[str, ...], list[str]] = {}
    last: tuple[str, ...] | None = None
    names: list[str] = []
    made = []
    for row in rows:
        given = tuple(row)
        if given != last:
            if given not in shapes:
                known_columns(ref, table, given)
                shapes[given] = [c.name for c in table.columns if c.name in row]
            last, names = given, shapes[given]
        try:
            made.append({n: make(row[n]) for n in names})
        except (TypeError, ValueError, RecursionError):
            for name in names:
                plain_value(ref, f"{table.name}.{name}", row[name])  # says which
            raise
    return made


def _plain_lists(ref: str, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Columns:
    """The same of rows that are lists in the order of `columns`; column by column, which have mostly one type."""
    width = len(columns)
    if {*map(len, rows)} - {width}:
        raise BrokenFlow(f"{ref}: a row of {table.name} must have {width} values, one for each column")
    turned = [*zip(*rows, strict=True)]
    unseen = not (PATTERNS and holds("\n".join(map(_texts, turned))))
    made = []
    for name, values in zip(columns, turned, strict=False):
        try:
            made.append(plain_column(values, unseen=unseen))
        except (TypeError, ValueError, RecursionError):
            for value in values:
                plain_value(ref, f"{table.name}.{name}", value)  # says which
            raise
    return Columns(made)


@dataclass(frozen=True, slots=True)
class Block:
    """Many rows of a table in one piece: lines of JSON, each an array of plain values in the order of `columns`."""

    columns: tuple[str, ...]
    count: int
    lines: bytes

    def rows(self) -> list[dict[str, Any]]:
        """The same as mappings."""
        return [dict(zip(self.columns, row, strict=True)) for row in msgspec.json.Decoder().decode_lines(self.lines)]

    def joined(self, other: Block) -> Block:
        """Both in one."""
        return Block(self.columns, self.count + other.count, self.lines + other.lines)


def block_of(ref: str, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Block:
    """Rows that are lists of values, made plain. Raises BrokenFlow that names what cannot be stored."""
    known_columns(ref, table, columns)
    names = tuple(columns)
    try:
        given = [*zip(*rows, strict=True)]
        made = [_plain_or_text(column) for _, column in zip(names, given, strict=True)]
        if any(one is not other for one, other in zip(made, given, strict=True)):
            rows = [*zip(*made, strict=True)]
        lines = _ENCODER.encode_lines(rows)
    except (TypeError, ValueError, RecursionError):
        _plain_lists(ref, table, names, rows)  # says which
        raise
    # A text that holds a secret, or is too long, is met here once for all of them.
    if (PATTERNS and holds(lines.decode())) or len(lines) > MAX_VALUE:
        rows = _plain_lists(ref, table, names, rows).rows()
        lines = _ENCODER.encode_lines(rows)
    return Block(names, len(rows), lines)


def _plain_or_text(values: Sequence[Any]) -> Sequence[Any]:
    """A column made plain, but for texts, which are encoded as they are."""
    return values if {*map(type, values)} <= _TEXTS else plain_column(values, unseen=True)


def _texts(values: Sequence[Any]) -> str:
    """All texts of a column."""
    if len({*map(id, values)}) == 1:
        values = values[:1]
    try:
        return "\n".join(values)  # all texts, as most columns are
    except TypeError:
        return "\n".join([value for value in values if type(value) is str])


def size_of(row: Mapping[str, Any]) -> int:
    """How much a plain row weighs: its texts, of which documents are one kind."""
    return sum([len(v) for v in row.values() if type(v) is str])


def weight_of(rows: Sequence[Sequence[Any]]) -> int:
    """The same of many rows that are lists."""
    return _weight_of_columns(zip(*rows, strict=True))


def _weight_of_columns(columns: Iterable[Sequence[Any]]) -> int:
    weight = 0
    for column in columns:
        try:
            weight += sum(map(len, column))  # all texts, as most columns are
        except TypeError:
            weight += sum([len(v) for v in column if type(v) is str])
    return weight


def _weight(write: Write) -> int:
    rows: Any = write.rows
    if write.columns is None:
        return sum([size_of(row) for row in rows])
    return _weight_of_columns(rows.columns)


def _check_size(ref: str, writes: Sequence[Write]) -> None:
    rows = sum(len(w.rows) for w in writes)
    size = sum([_weight(w) for w in writes])
    if rows > MAX_ROWS or size > MAX_BYTES:
        msg = f"{ref}: an outcome carries at most {MAX_ROWS:,} rows or 4 MB; this has {rows:,} rows, {size:,} bytes"
        raise BrokenFlow(msg)
