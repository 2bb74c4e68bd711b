"""Spans of time and counts as a person says them. It imports nothing: every command shows some."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def duration(seconds: float) -> str:
    """How long, in the unit that fits: `12 s`, `3 min`, `5 h`, `9 d`."""
    size = abs(seconds)
    if size < _MINUTE:
        return f"{size:.0f} s"
    if size < _HOUR:
        return f"{size / _MINUTE:.0f} min"
    if size < 2 * _DAY:
        return f"{size / _HOUR:.0f} h"
    return f"{size / _DAY:.0f} d"


def counted(count: int, one: str, many: str | None = None) -> str:
    """`1 unit`, `12,345 units`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
