"""What a search at InfoJobs may ask for. It imports nothing heavy: the configuration is checked by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.connectors.searches import Parameters

_OURS = {"page": "pages", "maxresults": "pages", "order": "the order", "sincedate": "the span"}


def check(parameters: Parameters) -> list[str]:
    """What is wrong with the parameters of a query, each in a sentence; nothing is asked for that."""
    return list(_faults(parameters))


def _faults(parameters: Parameters) -> Iterator[str]:
    for name, value in parameters.items():
        if not name or not name.isprintable():
            yield f"{name!r} is not the name of a parameter"
        elif (what := _OURS.get(name.lower())) is not None:
            yield f"{name!r} cannot be a parameter of a query: Penstock sets {what} itself"
        elif (several := isinstance(value, list | tuple)) and not value:
            yield f"{name!r} is an empty list; leave it out, or name a value"
        elif not all(_sendable(one) for one in (value if several else [value])):
            yield f"{name!r} must be a text, a number, true or false, or a list of these"


def _sendable(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" not in value and not any("\ud800" <= one <= "\udfff" for one in value)
    return isinstance(value, bool | int | float)
