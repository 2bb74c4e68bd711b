"""What a person names: found now, or as it stood; and what is said where it is not found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.model.clock import instant_text
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.machine import Machine

if TYPE_CHECKING:
    from penstock.operations.reader import Reader


def find_run(reader: Reader, machine: Machine, text: str, command: str, at: datetime | None = None) -> Any:
    """The run that a person names: by its id, the beginning of it, or a reference. Raises UsageError, UnknownUnit.

    `command` lists runs. `at`: the moment that the reader is of.
    """
    wanted = text.removeprefix(f"{machine.name}:").lower()
    sql = f"SELECT unit_id FROM {machine.table} WHERE substr(unit_id, 1, :size) = :wanted ORDER BY unit_id LIMIT 2"
    found = reader.read(lambda cursor: cursor.rows(sql, size=len(wanted), wanted=wanted)) if wanted else []
    if len(found) > 1:
        raise UsageError(f"more than one run begins with {text!r}; give more of its id")
    if not found and at is not None:
        raise not_there(f"run {text!r}", at, command)
    if not found:
        raise UnknownUnit(f"no run {text!r} in the ledger; 'penstock {command}' lists them")
    return reader.get_many(machine, [str(found[0][0])])[0]


def not_there(what: str, at: datetime, command: str) -> UnknownUnit:
    """That there was no such thing at a moment, and what lists those that there were."""
    then = instant_text(at)
    return UnknownUnit(f"there was no {what} at {then}; 'penstock {command} --at {then}' lists what was")


@contextlib.contextmanager
def excused(lacks: str | None) -> Iterator[None]:
    """What is not found may have been there, where `lacks` says that some of that time was pruned."""
    try:
        yield
    except (UnknownUnit, UsageError) as error:
        if lacks is None:
            raise
        raise type(error)(f"{error}; {lacks}") from None
