"""What failures have in common: the reason without its numbers, ids, quoted texts and moments."""

from __future__ import annotations

import re

_LENGTH = 8
_LONGEST = 2_000
#: In this order: an instant holds numbers, and a quoted text may hold anything.
_PARTICULAR = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "<instant>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r'"[^"\n]*"|\'[^\'\n]*\'|`[^`\n]*`|“[^”\n]*”'), "<text>"),
    (re.compile(r"\bhttps?://\S+"), "<address>"),
    (re.compile(r"\b(?=[0-9a-z_-]*\d)(?=[0-9a-z_-]*[a-z])[0-9a-z_-]{8,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"[-+]?\d[\d.,]*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def cause_of(reason: str | None) -> str:
    """The reason with everything that differs from unit to unit replaced."""
    text = (reason or "no reason given")[:_LONGEST]
    for pattern, word in _PARTICULAR:
        text = pattern.sub(word, text)
    return text.strip()


def fingerprint(machine: str, state: str, cause: str) -> str:
    """Eight characters that stand for a cause in a state of a machine."""
    import hashlib

    told = hashlib.sha256(f"{machine}\0{state}\0{cause}".encode(errors="replace"))
    return told.hexdigest()[:_LENGTH]
