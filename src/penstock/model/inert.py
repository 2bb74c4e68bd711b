"""Text from outside, made safe to show: what a terminal or a reader would obey is written out instead."""

from __future__ import annotations

import re

# Control characters of both sets, marks that turn the direction of a line, separators of lines, halves of surrogates.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def inert(text: str, *, lines: bool = False) -> str:
    r"""The text on one line, with `\x1b` where an escape character stood. `lines` leaves line feeds and tabs in."""
    if text.isascii() and text.isprintable():
        return text
    return _OBEYED.sub(lambda found: _written(found[0], lines=lines), text)


def _written(character: str, *, lines: bool) -> str:
    if character in _SHORT:
        return character if lines and character != "\r" else _SHORT[character]
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004 - a byte
