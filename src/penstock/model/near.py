"""Names that were perhaps meant, for a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST = 200


def near(name: object, known: Iterable[str], most: int = 1) -> list[str]:
    """Those of the known names that look like this one, the likeliest first."""
    import difflib  # rarely needed, and not light

    return difflib.get_close_matches(str(name)[:_LONGEST], list(known), most)
