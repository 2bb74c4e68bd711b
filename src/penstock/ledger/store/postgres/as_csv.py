"""JSON arrays on lines as the CSV that COPY reads, without taking them apart.

A line of JSON is nearly a line of CSV: values between commas, texts in quotes. With the backslash as CSV's escape and
`null` as its NULL, what is left to do is to take away the brackets, and to write out those characters that JSON escapes
by a name or a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_ESCAPED = re.compile(rb'\\(?:(["\\])|([bfnrt]|u00[0-9a-f]{2}))')


def as_csv(lines: bytes, first: Iterable[str] = ()) -> bytes:
    """The rows of `lines`, made by `msgspec`, each with the texts `first` before its own values."""
    before = b"".join([msgspec.json.encode(text) + b"," for text in first])
    # The only line breaks are those between arrays: within a text they are escaped.
    rows = before + lines[1:-2].replace(b"]\n[", b"\n" + before) + b"\n"
    return _ESCAPED.sub(_written_out, rows) if b"\\" in rows else rows


def _written_out(escaped: re.Match[bytes]) -> bytes:
    # CSV knows an escaped quote and an escaped backslash too.
    return escaped[0] if escaped[1] else msgspec.json.decode(b'"%s"' % escaped[0], type=str).encode()
