"""The key of a query: its client, and a digest of what is searched for.

Two ways to write one search have one key. Another search has another key, and so a history of its own. Hence the keys
of queries that exist must never change: what is done here is part of what the ledger holds.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from urllib.parse import quote

DEEPEST = 10
LONGEST = 10_000
"""How many characters the parameters of a query may come to, in their canonical form."""
_LONGEST_CLIENT = 200
_DIGITS = 4_000
_SHOWN = 60


def query_key(
    client: str,
    parameters: Mapping[str, Any],
    *,
    defaults: Mapping[str, Any] = {},
    ordered: Collection[str] = (),
    path: str = "",
) -> str:
    """`client`-`digest`, safe in file names and references. Raises ValueError for what cannot be normalised.

    With a `path`, which the configuration gives as it gives `defaults`, another path or another default that is in
    force is another search.
    """
    search = normalise(parameters, defaults=defaults, ordered=ordered)
    asked: Any = [path, {**normalise(defaults, ordered=ordered), **search}] if path else search
    return f"{_encoded(client)}-{hashlib.sha256(_json(asked).encode()).hexdigest()[:12]}"


def normalise(
    parameters: Mapping[str, Any], *, defaults: Mapping[str, Any] = {}, ordered: Collection[str] = ()
) -> dict[str, Any]:
    """The canonical form of `parameters`: tables, lists, texts and truth values, as JSON has them.

    Numbers and dates become texts: a search is asked in text, and "10" is what 10 is asked as. What is empty is left
    out, and so is a parameter that equals the client's default as a whole. Lists are sets, unless they are below a name
    in `ordered`. Raises ValueError for what cannot be normalised.
    """
    names = frozenset(_key(name, "ordered") for name in ordered)
    known = _table(defaults, names, is_ordered=False, path="", depth=0)
    given = _table(parameters, names, is_ordered=False, path="", depth=0)
    canonical = {key: value for key, value in given.items() if key not in known or _differ(value, known[key])}
    length = len(_json(canonical))
    if length > LONGEST:
        raise ValueError(f"the parameters are {length:,} characters long; at most {LONGEST:,} are allowed")
    return canonical


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _differ(one: Any, other: Any) -> bool:
    return _json(one) != _json(other)


def _encoded(client: str) -> str:
    if not client:
        raise ValueError("a client must have a name")
    encoded = quote(_unicode(client, "the client's name"), safe="").replace("~", "%7E")
    if len(encoded) > _LONGEST_CLIENT:
        raise ValueError(f"the client's name {_shown(client)} is too long to be part of a key")
    return encoded


def _table(
    table: Mapping[Any, Any], ordered: frozenset[str], *, is_ordered: bool, path: str, depth: int
) -> dict[str, Any]:
    written: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = _key(name, path)
        if key in written:
            raise ValueError(f"{_shown(written[key])} and {_shown(name)} are the same parameter; give one of them")
        written[key] = name
        below = f"{path}.{name}" if path else name
        normal = _value(value, ordered, is_ordered=is_ordered or key in ordered, path=below, depth=depth)
        if normal is not None:
            found[key] = normal
    return {key: found[key] for key in sorted(found)}


def _value(value: Any, ordered: frozenset[str], *, is_ordered: bool, path: str, depth: int) -> Any:
    """Its canonical form; None where it is empty."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return " ".join(_unicode(value, _shown(path)).split()) or None
    if isinstance(value, int | float | Decimal):
        return _number(value, path)
    if isinstance(value, date | time):
        return _date(value, path)
    if not isinstance(value, Mapping | list | tuple):
        raise ValueError(  # noqa: TRY004 - whatever is wrong with parameters is a ValueError
            f"{_shown(path)} is of type {type(value).__name__}; give a text, number, date, list or table"
        )
    if depth == DEEPEST:
        raise ValueError(f"{_shown(path)} is nested more than {DEEPEST} deep")
    if isinstance(value, Mapping):
        return _table(value, ordered, is_ordered=is_ordered, path=path, depth=depth + 1) or None
    each = (_value(item, ordered, is_ordered=is_ordered, path=path, depth=depth + 1) for item in value)
    items = [item for item in each if item is not None]
    if not is_ordered:
        distinct = {_json(item): item for item in items}
        items = [distinct[text] for text in sorted(distinct)]
    return items[0] if len(items) == 1 else items or None


def _number(value: float | Decimal, path: str) -> str:
    """Its digits, without an exponent or zeros that say nothing."""
    if isinstance(value, int):
        if value.bit_length() > 3 * _DIGITS:
            raise ValueError(f"{_shown(path)} is a number with too many digits")
        return str(int(value))
    exact = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    if not exact.is_finite():
        raise ValueError(f"{_shown(path)} is {value}, which is not a number that can be searched for")
    if not exact:
        return "0"
    _sign, digits, exponent = exact.as_tuple()
    if len(digits) + abs(int(exponent)) > _DIGITS:
        raise ValueError(f"{_shown(path)} is a number with too many digits")
    text = format(exact, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _date(value: date | time, path: str) -> str:
    """As ISO 8601 has it; an instant in UTC."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        return value.isoformat()
    try:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:
        raise ValueError(f"{_shown(path)} is a date beyond the calendar") from None


def _key(name: Any, path: str) -> str:
    """The name of a parameter without its case; decomposed first, as canonical caseless matching wants it."""
    if not isinstance(name, str):
        raise ValueError(f"{_shown(path or 'parameters')} has the name {_shown(name)}, which is not a text")  # noqa: TRY004
    text = _unicode(name, f"the name {_shown(name)}")
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())
    return " ".join(folded.split())


def _unicode(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half of a surrogate pair, which is not text") from None
    return unicodedata.normalize("NFC", text)


def _shown(name: Any) -> str:
    """For a message: short and inert."""
    text = str(name)
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
