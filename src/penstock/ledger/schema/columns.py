"""Between Python values and columns, the same way for both databases.

A batch of rows travels to either database as one JSON text (one parameter, whatever the size), so every value is
first made plain (`plain`); what comes back is made Python again by a decoder built once per table.
"""

from __future__ import annotations

import functools
import json
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin
from uuid import UUID

from penstock.ledger.store.database import Database
from penstock.model.clock import instant_text
from penstock.model.errors import MachineError, TooLarge
from penstock.model.outcome import MAX_VALUE
from penstock.model.unit import GuardedUnit, field_types
from penstock.settings.redaction import PATTERNS, holds, redact

G = TypeVar("G", bound=GuardedUnit)


LONGEST_TEXT = 4_000
_WIDEST = 4
"""So many bytes has a character at most."""
_TEXTS = {str}
LAND_IT = "land what is large in the raw sink and keep its key, or split it into rows"


def python_type(annotation: Any) -> tuple[type, bool]:
    """The plain type of an annotation, and whether it may be None."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [a for a in get_args(annotation) if a is not type(None)]
        if len(parts) != 1:
            msg = f"{annotation} cannot be a column; use one type, or one type and None"
            raise MachineError(msg)
        return python_type(parts[0])[0], True
    if origin is not None:
        return origin, False
    return annotation, False


def plain(value: Any) -> Any:
    """A value as JSON can carry it; documents become JSON text inside the text, and no text holds a secret.

    Raises ValueError or TypeError for what the databases cannot keep as it is, TooLarge for what they should not.
    """
    kind = type(value)
    if value is None or kind is bool or (kind is str and value.isascii() and not PATTERNS and len(value) <= MAX_VALUE):
        return value
    make = _PLAIN.get(kind) or next((m for known, m in _PLAIN.items() if isinstance(value, known)), None)
    if make is None:
        msg = f"{kind.__name__} is not a type that a column can keep"
        raise TypeError(msg)
    return make(value)


def plain_unseen(value: Any) -> Any:
    """`plain` for a value of a batch in which no text holds a secret (see `holds_secret`): none is looked for again."""
    if type(value) is str:
        if not value.isascii() or len(value) > MAX_VALUE:
            _fitting(value)  # raises, as in `_text`
        return value
    return None if value is None else plain(value)


def plain_column(values: Sequence[Any], *, unseen: bool) -> Sequence[Any]:
    """Many values of one column made plain; `unseen`: no text among them holds a secret. Raises as `plain` does."""
    first = values[0] if values else None
    if len(values) > 1 and first is values[-1] and len({*map(id, values)}) == 1:
        # Of one value, such as the moment at which all of them were seen, the others are copies.
        return [(plain_unseen if unseen else plain)(first)] * len(values)
    kinds = {*map(type, values)}
    if unseen and kinds == _TEXTS:
        _fitting_texts(values)
        return values
    kinds.discard(type(None))
    if unseen and kinds == _TEXTS:
        _fitting_texts([value for value in values if value is not None])
        return values
    if kinds == {Decimal} and all(map(Decimal.is_finite, filter(None, values))):
        return [None if value is None else str(value) for value in values]
    if kinds == {int}:
        for extreme in (min, max):
            _whole(extreme(filter(None, values), default=0))  # raises
        return values
    if kinds == {float} and all(map(math.isfinite, filter(None, values))):
        return values
    if kinds == {datetime}:
        return [None if value is None else _instant(value) for value in values]
    make = plain_unseen if unseen else plain
    return [*map(make, values)] if kinds else values


def _fitting_texts(values: Sequence[str]) -> None:
    """Raise as `_fitting` does for the first of them that does not fit; mostly one look at all of them is enough."""
    whole = "".join(values)
    if not whole.isascii():
        whole.encode()  # raises where one holds half a character
    if len(whole) * _WIDEST > MAX_VALUE and max(map(len, values)) * _WIDEST > MAX_VALUE:
        for value in values:
            _fitting(value)


def holds_secret(rows: Iterable[Iterable[Any]]) -> bool:
    """Whether any text of the rows may hold a secret: one search through all of them, instead of one in each."""
    if not PATTERNS:
        return False
    return holds("\n".join([value for row in rows for value in row if type(value) is str]))


def _fitting(value: str) -> None:
    size = len(value.encode())  # raises where it holds half a character, which no database can keep
    if size > MAX_VALUE:
        raise TooLarge(f"it has {size:,} bytes, a value at most {MAX_VALUE:,}; {LAND_IT}")


def _text(value: str) -> str:
    _fitting(value)
    return redact(str(value))


def _whole(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        msg = f"{value} does not fit a column of 64 bits"
        raise ValueError(msg)
    return int(value)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        msg = f"{value} is not a number that a ledger can store"
        raise ValueError(msg)
    return value


def _exact(value: Decimal) -> str:
    if not value.is_finite():
        msg = f"{value} is not a number that a ledger can store"
        raise ValueError(msg)
    return str(value)


_instant = functools.lru_cache(4_096)(instant_text)  # columns of a batch have many of them in common


def _document(value: Any) -> str:
    return _text(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=plain))


# In this order for subclasses: an enum's member is its value, and a datetime is a date as well.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    Enum: lambda value: value.value,
    str: _text,
    int: _whole,
    float: _finite,
    datetime: instant_text,
    date: date.isoformat,
    Decimal: _exact,
    UUID: str,
    dict: _document,
    list: _document,
    tuple: _document,
    Mapping: lambda value: _document(dict(value)),
}


def readable(text: str) -> str:
    """A text for people, made such that any database keeps it: an error message must never stop a commit.

    A secret in it is replaced, before it is cut: half a secret would not be recognised.
    """
    if PATTERNS:
        text = redact(text)
    if len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + " …"
    if text.isascii() and "\0" not in text:
        return text
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


#: What a decoder raises at a value that somebody's SQL left in a row.
UNREADABLE = (ValueError, ArithmeticError, TypeError, AttributeError)


class Unreadable(str):
    """The text of a document that a database keeps and Python cannot read."""

    __slots__ = ()


def document(text: str | bytes) -> Any:
    """A document, or its text as Unreadable: one row that cannot be read must not hide the others."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return Unreadable(text if isinstance(text, str) else text.decode())


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        msg = "a document is nested too deeply"
        raise ValueError(msg) from None


def _reader(kind: type, dialect: str) -> Callable[[Any], Any] | None:
    if dialect == "postgresql":
        return (lambda value: _parsed(value) if type(value) is Unreadable else value) if kind in (dict, list) else None
    readers: dict[type, Callable[[Any], Any]] = {
        datetime: datetime.fromisoformat,  # a ledger's instants end in Z: they are aware and in UTC
        date: date.fromisoformat,
        bool: bool,
        Decimal: Decimal,
        UUID: UUID,
        dict: _parsed,
        list: _parsed,
    }
    return readers.get(kind)


_DECODERS: dict[tuple[type[GuardedUnit], str], Any] = {}


def decoder_of(database: Database, unit_type: type[G]) -> Callable[[Sequence[Any]], G]:
    """A function from a row of this database, in `field_types` order, to a unit."""
    return unit_decoder(unit_type, database.dialect)


def unit_decoder(unit_type: type[G], dialect: str) -> Callable[[Sequence[Any]], G]:
    """A function from a row, in `field_types` order, to a unit."""
    # Kept for each type: to compile it takes longer than most reads.
    made: Callable[[Sequence[Any]], G] | None = _DECODERS.get((unit_type, dialect))
    if made is None:
        made = _DECODERS[unit_type, dialect] = _compiled(unit_type, dialect)
    return made


def _compiled(unit_type: type[G], dialect: str) -> Callable[[Sequence[Any]], G]:
    readers: dict[str, Any] = {"unit_type": unit_type}
    values = []
    for index, (name, annotation) in enumerate(field_types(unit_type).items()):
        kind = python_type(annotation)[0]
        value = f"row[{index}]"
        if isinstance(kind, type) and issubclass(kind, Enum):
            # A value outside the enum (a newer program's state) is kept as it is; nothing is lost by reading it.
            readers[f"read_{index}"] = kind._value2member_map_.get
            value = f"read_{index}({value}, {value})"
        elif reader := _reader(kind, dialect):
            readers[f"read_{index}"] = reader
            value = f"None if {value} is None else read_{index}({value})"
        values.append(f"{name}={value}")
    # Written out once per type, because a loop over columns would be most of what a claim costs.
    source = f"def decode(row):\n return unit_type({', '.join(values)})"
    exec(source, readers)  # noqa: S102 - made of field names, which are identifiers
    decode: Callable[[Sequence[Any]], G] = readers["decode"]
    return decode
