"""The quick way through a run of records: looked at all together, or not at all.

`quick_lines` says yes only where it is sure. Its doubts cost little and are no errors: whoever asked then looks at the
records one by one, and finds that they are right, or what is wrong and in which.
"""

from __future__ import annotations

import re

import msgspec

# Records that are flat, each on a line; no quantifier gives anything back.
_FLAT = re.compile(rb'(?:\{[^"{}\[\]\n]*+(?:"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"[^"{}\[\]\n]*+)*+\}\n)*+')
# Digits, and what may be an exponent; everything else is of no interest.
_MARKS = bytes(ord("0") if chr(byte) in "0123456789" else ord("e") if chr(byte) in "eE" else 32 for byte in range(256))
_LONG = b"0" * 19
_EXPONENT = b"0e"


class _Record(msgspec.Struct, gc=False):
    """No column is wanted: what a decoder skips it has checked, but for the encoding of its texts."""


_DECODER = msgspec.json.Decoder(_Record)


def quick_lines(run: bytes, longest: int) -> bytes | None:
    """The records of `{…},{…},{…}`, one on a line; None where each must be looked at.

    They are then flat JSON objects in UTF-8, none longer than `longest`, without a NUL, without a number that has 19
    digits in a row or an exponent.
    """
    if b"\n" in run or rb"\u0000" in run:
        return None
    # Within a text this makes a line break, which JSON forbids there: the decoder refuses it.
    lines = run.replace(b"},{", b"}\n{") + b"\n"
    count = lines.count(b"\n")
    if (lines.count(b"{") != count or b"[" in lines) and not _FLAT.fullmatch(lines):
        return None
    if max(map(len, lines.split(b"\n"))) > longest:
        return None
    marks = lines.translate(_MARKS)
    if _LONG in marks or _EXPONENT in marks:
        return None
    try:
        if not lines.isascii():
            lines.decode()
        found = _DECODER.decode_lines(lines)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return lines if len(found) == count else None
