"""The document in an answer, without anything that no database can keep.

Some servers write what is no JSON by the book: NaN, or half of a pair of surrogates. Such an answer is read all the
same: a number that is none becomes null, and a character that is none becomes U+FFFD, as does NUL.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from penstock.connectors.http.client import Response
from penstock.connectors.rest_json.mapping import UNREADABLE
from penstock.model.errors import Rejected, Transient
from penstock.settings.redaction import redact

_NUL = b"\\u0000"
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_SHOWN = 100
_LISTED = 12
_MOST_DIGITS = 300


def document(call: str, response: Response) -> Any:
    """What an answer says. Raises Transient where it is not JSON."""
    content = response.content
    try:
        found = msgspec.json.decode(content)
        return _cleaned(found) if _NUL in content else found
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _lenient(call, content)


def records_of(call: str, found: Any, path: str | None, whole: Any) -> list[Any]:
    """The list in an answer, of which `found` is what its path leads to. Raises Rejected where it is no list."""
    if type(found) is list:
        return found
    kind = "nothing" if found is None else _KINDS.get(type(found), "a number")
    there = f"at {path!r}" if path is not None else "but the answer itself should be one"
    raise Rejected(f"{call}: the answer has no list {there}; there is {kind}, and the answer is {_outline(whole)}")


_KINDS: dict[type, str] = {str: "text", dict: "an object", bool: "true or false", list: "a list"}


def _outline(whole: Any) -> str:
    """What an answer is made of, so that the right path can be written down."""
    if type(whole) is dict:
        names = ", ".join(ascii(name)[1:-1][:40] for name in list(whole)[:_LISTED])
        return f"an object with {names}" if names else "an empty object"
    return _KINDS.get(type(whole), "null" if whole is None else "a number")


def _lenient(call: str, content: bytes) -> Any:
    try:
        return _cleaned(json.loads(_text(content), parse_constant=lambda _name: None, parse_int=_integer))
    except (ValueError, RecursionError) as error:
        shown = ascii(redact(content[:_SHOWN].decode("utf-8", "replace"))) if content else "it is empty"
        raise Transient(f"{call}: the answer is not JSON: {shown}") from error


def _text(content: bytes) -> str | bytes:
    """The answer with a mark in place of each byte that is no UTF-8, as servers make them that cut texts by bytes."""
    encoding = json.detect_encoding(content)
    return content.decode(encoding, "replace") if encoding.startswith("utf-8") else content


def _integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MOST_DIGITS else None


def _cleaned(value: Any) -> Any:
    if type(value) is str:
        return _UNKEEPABLE.sub(UNREADABLE, value)
    if type(value) is dict:
        return {_cleaned(name): _cleaned(item) for name, item in value.items()}
    if type(value) is list:
        return [_cleaned(item) for item in value]
    if type(value) is float and value - value != 0:  # beyond what a number can be
        return None
    return value
