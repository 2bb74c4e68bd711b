"""Pages by keyset: newest first, with a cursor that says where one ended. And windows of time that make sense."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from penstock.model.clock import instant_text, parse_instant
from penstock.model.errors import UsageError


class Place(Struct, frozen=True):
    """Where a page ended: the moment of its last row, and what tells rows of one moment apart."""

    at: datetime
    rest: tuple[str, ...]

    def text(self) -> str:
        return "/".join((instant_text(self.at), *self.rest))

    @staticmethod
    def read(text: str, parts: int) -> Place:
        """The cursor of an earlier page. Raises UsageError."""
        moment, *rest = text.split("/")
        try:
            found = Place(parse_instant(moment), tuple(rest))
        except ValueError:
            rest = []
        if len(rest) != parts:
            raise UsageError(f"{text!r:.100} is not a cursor; copy the one that the page before ended with")
        return found

    def identifier(self) -> str:
        """Its one part, an id. Raises UsageError."""
        try:
            return str(UUID(self.rest[0]))
        except ValueError:
            raise UsageError(f"{self.text()!r:.100} is not a cursor of this list") from None


def after_clause(column: str, at: str, rest: Sequence[tuple[str, str]]) -> str:
    """The condition for rows after a place, where all columns descend; `rest` are columns and their parameters."""
    columns = ", ".join((column, *(name for name, _ in rest)))
    values = ", ".join((at, *(value for _, value in rest)))
    return f"({columns}) < ({values})"


def refuse_window(now: datetime, since: datetime | None, until: datetime | None) -> None:
    """Raises UsageError for a window that begins in the future, or ends before it begins."""
    for moment in (since, until):
        if moment is not None and moment.tzinfo is None:
            raise UsageError(f"{moment.isoformat()} has no time zone; write {moment.isoformat()}Z for UTC")
    if since is not None and since > now:
        raise UsageError(f"{instant_text(since)} lies in the future; nothing has happened since")
    if since is not None and until is not None and until <= since:
        raise UsageError(f"the end {instant_text(until)} is not after the beginning {instant_text(since)}; swap them")
