"""Search: a unit, a run, a gate, a machine or a command, by a piece of its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.errors import UsageError
from penstock.model.machine import Machine
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At, lacking, said
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.operations.reader import Reader

_FEW = 50_000
"""Units of a machine that are looked at one by one for a piece of a name."""


class Sought(Parameters, frozen=True):
    text: Annotated[str, argument("A piece of its name; for units of large machines the beginning.", example="acme")]
    limit: Annotated[int, option("How many of each kind at most.", ge=1, le=1_000)] = 10
    at: At = None


class FoundRow(Row, frozen=True):
    kind: Annotated[str, column("The machine of a unit; else machine, gate or lifecycle.")]
    name: Annotated[str, column("What it is called.", show="reference")]
    status: Annotated[str | None, column("The state of a unit.", show="state")]
    says: Annotated[str | None, column("Why it is so (of the past, as its history says), or what it is.", show="text")]


@reading("find", "Units, runs, gates and machines, by a piece of their name.")
def find(ask: Ask[KernelSettings], wanted: Sought) -> Page[FoundRow]:
    """Upper and lower case are alike. A unit is found by its key, with or without its machine in front."""
    text = wanted.text.strip()
    if not text or "\0" in text:
        raise UsageError("there is nothing to look for: give a piece of a name")
    now, lacks, ask = ask.reader, lacking(ask, ask.reader.kept(), wanted.at), ask.then(wanted.at)
    rows = [*_units(ask, text, wanted.limit, now), *_gates(ask, text, wanted.limit), *_named(ask, text)]
    cut = [kind for kind, n in Counter(row.kind for row in rows).items() if n >= wanted.limit]
    more = f"there may be more of {', '.join(cut)}: a longer piece finds fewer, a higher limit shows more"
    notes = [more if cut else None, lacks] if rows else ["nothing has that in its name", lacks]
    return Page(rows=rows, note=said(*notes))


READINGS = [find]


def _units(ask: Ask[Any], text: str, most: int, now: Reader) -> Iterator[FoundRow]:
    machine, colon, key = text.partition(":")
    kept = ask.reader.kept()
    chosen = [one for one in kept if colon and one.name == machine]
    for one in chosen or kept:
        few = _has_few(now, one)
        found = partial(_like, machine=one, text=key if chosen else text, most=most, few=few)
        for unit_id, status, reason in ask.reader.read(found):
            yield FoundRow(kind=one.name, name=f"{one.name}:{unit_id}", status=status, says=reason)


def _has_few(now: Reader, machine: Machine) -> bool:
    """Whether the machine has so few units that each can be looked at; it is asked of now, where that is cheap."""
    counted = f"SELECT count(*) FROM (SELECT 1 FROM {machine.table} LIMIT :few) AS s"
    ((count,),) = now.read(lambda cursor: cursor.rows(counted, few=_FEW))
    return bool(count < _FEW)


def _like(cursor: Cursor, *, machine: Machine, text: str, most: int, few: bool) -> list[Any]:
    """Those whose key has the text anywhere; if there are not `few`, those whose key begins with it."""
    where = "lower(unit_id) LIKE :text ESCAPE '!'" if few else "substr(unit_id, 1, :size) = :text"
    given = {"text": _pattern(text)} if few else {"text": text, "size": len(text)}
    sql = f"SELECT unit_id, status, change_reason FROM {machine.table} WHERE {where} ORDER BY unit_id LIMIT :most"
    return list(cursor.rows(sql, most=most, **given))


def _gates(ask: Ask[Any], text: str, most: int) -> Iterator[FoundRow]:
    sql = "SELECT gate_id FROM gate WHERE lower(gate_id) LIKE :like ESCAPE '!' ORDER BY gate_id LIMIT :most"
    for (gate,) in ask.reader.read(lambda cursor: cursor.rows(sql, like=_pattern(text), most=most)):
        yield FoundRow(kind="gate", name=str(gate), status=None, says=None)


def _named(ask: Ask[Any], text: str) -> Iterator[FoundRow]:
    """Machines and lifecycles."""
    sought = text.lower()
    for machine in ask.reader.machines.values():
        if sought in machine.name:
            yield FoundRow(kind="machine", name=machine.name, status=None, says=None)
    for lifecycle in ask.program.app.lifecycles:
        if sought in lifecycle.name:
            yield FoundRow(kind="lifecycle", name=lifecycle.name, status=None, says=lifecycle.says)


def _pattern(text: str) -> str:
    """A pattern for LIKE that matches the text as it is, anywhere."""
    plain = text.lower()
    for special in "!%_":
        plain = plain.replace(special, f"!{special}")
    return f"%{plain}%"
