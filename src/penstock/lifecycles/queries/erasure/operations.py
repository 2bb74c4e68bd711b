"""Erasing what is known of an offer, a company or a record, by hand; and what was erased, when and by whom."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from penstock.lifecycles.queries.erasure.machine import ANY_CLIENT, E, Erasure, Kind, again, erasure
from penstock.lifecycles.queries.erasure.subjects import FORMS, Subject, refuse_reason, subject
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Move
from penstock.model.spoken import counted
from penstock.model.unit import Ref, replace
from penstock.operations.declare import Ask, Page, Role, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At, lacking
from penstock.operations.plan import Follow, Together

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

_ASKED = f"FROM transition_log WHERE machine = '{erasure.name}' AND to_status = 'wanted' AND actor LIKE 'operator%' AND"
_ENDED = frozenset({E.DONE, E.FAILED})


class EraseParameters(Parameters, frozen=True):
    """What is to be erased."""

    keys: Annotated[tuple[str, ...], argument(f"What is erased: {FORMS}.", example="offer:infojobs/1234")]


class ErasuresFilter(Parameters, frozen=True):
    """Which erasures."""

    status: Annotated[E | None, option("Only those in this state.")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=100_000)] = 100
    at: At = None


class ErasureRow(Row, frozen=True):
    """Something that was erased, or is to be."""

    erased: Annotated[str, column("What: its kind and id, or the digest of a company's name.", show="reference")]
    status: Annotated[E, column("How far it has come.", show="state")]
    asked_by: Annotated[str | None, column("Who asked for it.", heading="by")]
    asked_at: Annotated[datetime | None, column("When it was asked for.", heading="asked")]
    erased_at: Annotated[datetime | None, column("When it was done.", heading="done")]
    rows: Annotated[int | None, column("How many rows were blanked.")]
    pages: Annotated[int | None, column("How many landed pages were replaced.")]
    reason: Annotated[str | None, column("Why; or what it waits for, or failed at.", show="text")]


@operation("erase", "Erase what is known of offers, companies or records, for good.", role=Role.ADMIN)
def erase(ask: Ask[QueriesSettings], wanted: EraseParameters) -> Together:
    """Rows keep their keys, dates and links; all that was said in them goes.

    It goes from landed pages too, and from the feedback of the spreadsheet. A company goes with all its offers. Nothing
    of it is kept again, whatever is listed later.

    It waits until no query runs, and none runs meanwhile. The reason stays in the history: give the number of a request
    and no name.
    """
    _require(ask)
    ledger = ask.reader.as_ledger()
    found = {one.unit_id: one for one in (subject(ledger, ask.settings, key) for key in wanted.keys)}
    if not found:
        raise UsageError(f"name what is to be erased: {FORMS}")
    refuse_reason(ask.reason, list(found.values()))
    there: dict[str, Erasure] = {unit.unit_id: unit for unit in ask.reader.get_many(erasure, list(found))}
    births = [
        Birth(_born(ask, one), ask.reason, actor=Actor.OPERATOR) for key, one in found.items() if key not in there
    ]
    moves = [_move(ask, unit) for unit in there.values() if unit.status in _ENDED]
    if not births and not moves:
        raise UsageError("all of these are being erased already; 'penstock queries erasures' shows how far that is")
    names = list(found)
    return Together(
        _says(list(found.values())),
        births=births,
        moves=moves,
        warnings=_warnings(list(found.values())),
        follow=Follow(
            Ref(erasure.name, names[-1]),
            lambda _: all(_has_ended(unit) for unit in ask.reader.get_many(erasure, names)),
            lambda own: _shown(own, names),
            lambda ledger, _: _how_far(ledger, names),
        ),
    )


@reading("erasures", "What was erased, when and by whom, the newest first.")
def erasures(ask: Ask[QueriesSettings], wanted: ErasuresFilter) -> Page[ErasureRow]:
    """Of the past, counts are empty while it was under way, and moments where it was asked for again since."""
    _require(ask)
    lacks, ask = lacking(ask, [erasure], wanted.at), ask.then(wanted.at)
    which = "" if wanted.status is None else "WHERE status = :status "
    asked = (
        "asked_at" if wanted.at is None else f"coalesce(asked_at, (SELECT max(at) {_ASKED} unit_id = erasure.unit_id))"
    )
    sql = f"SELECT unit_id FROM erasure {which}ORDER BY {asked} DESC, unit_id LIMIT :most"
    given: dict[str, Any] = {"most": wanted.limit} | ({} if wanted.status is None else {"status": str(wanted.status)})
    names = [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql, **given))]
    found = _shown(ask, names)
    return found if lacks is None else replace(found, note=lacks)


OPERATIONS: list[Any] = [erase]
READINGS: list[Any] = [erasures]


def _require(ask: Ask[QueriesSettings]) -> None:
    if not ask.reader.keeps(erasure):
        raise UsageError("this ledger has no tables for erasures; 'penstock db upgrade' adds them")


def _born(ask: Ask[QueriesSettings], one: Subject) -> Erasure:
    return Erasure(
        kind=one.kind,
        client=one.client,
        record=one.record,
        asked_by=ask.who,
        asked_at=ask.now,
        due_at=ask.now,
        gate_id=RUN_GATE,
    )


def _move(ask: Ask[QueriesSettings], unit: Erasure) -> Move:
    """One that was done or has failed, from its beginning."""
    after = replace(again(unit, ask.now), status=E.WANTED, asked_by=ask.who, asked_at=ask.now)
    return Move(unit, after, ask.reason, Actor.OPERATOR)


def _says(found: list[Subject]) -> str:
    """What is erased, by keys: a name would be in every log of it."""
    parts = []
    for one in found:
        rows = sum(one.rows.values())
        name = one.record if one.kind is Kind.COMPANY else f"{one.client}/{one.record}"
        parts.append(f"{one.kind} {name} ({counted(rows, 'row')})")
    return f"erase {', '.join(parts)}"


def _warnings(found: list[Subject]) -> list[str]:
    total: dict[str, int] = {}
    for one in found:
        for table, rows in one.rows.items():
            total[table] = total.get(table, 0) + rows
    listed = ", ".join(f"{rows:,} of {table}" for table, rows in total.items() if rows) or "none is left"
    warnings = ["This cannot be undone.", f"Rows that are blanked: {listed}; and what people wrote beside them."]
    if pages := max(one.pages for one in found):
        warnings.append(f"{pages:,} landed pages are looked through; those that have it are replaced by copies.")
    if any(one.kind is Kind.COMPANY for one in found):
        warnings.append("Offers that the company lists later are not kept either, under any id.")
    return [*warnings, "Backups, logs and copies elsewhere keep what they have; erase it there too."]


def _has_ended(unit: Erasure) -> bool:
    return unit.status in _ENDED or unit.parked_at is not None


def _how_far(ledger: Ledger, names: list[str]) -> tuple[int, int | None]:
    found: list[Erasure] = ledger.get_many(erasure, names)
    return sum(_has_ended(unit) for unit in found), len(names)


def _shown(ask: Ask[QueriesSettings], names: list[str]) -> Page[ErasureRow]:
    units: dict[str, Erasure] = {unit.unit_id: unit for unit in ask.reader.get_many(erasure, names)}
    rows = [_row(ask, units[name]) for name in names if name in units]
    return Page(rows=rows, note=None if rows else "nothing was ever erased")


def _row(ask: Ask[QueriesSettings], unit: Erasure) -> ErasureRow:
    where = "" if unit.client == ANY_CLIENT else f"{unit.client}/"
    who, why = _asked(ask, unit)
    told = unit.parked_reason or unit.change_reason
    if unit.status is E.ERASING and unit.rows is None:
        told = None  # of the past: each step has a reason, and only the newest is kept
    return ErasureRow(
        erased=f"{unit.kind}:{where}{unit.record}",
        status=unit.status,
        asked_by=unit.asked_by or who,
        asked_at=unit.asked_at,
        erased_at=unit.erased_at,
        rows=unit.rows,
        pages=unit.pages_replaced,
        reason=why if unit.status is E.DONE else told,
    )


def _asked(ask: Ask[QueriesSettings], unit: Erasure) -> tuple[str | None, str | None]:
    """By whom it was asked for, and why, the last time."""
    sql = f"SELECT actor, reason {_ASKED} unit_id = :unit_id ORDER BY seq DESC LIMIT 1"
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, unit_id=unit.unit_id))
    return (None, None) if not rows else (str(rows[0][0]).partition(":")[2], rows[0][1])
