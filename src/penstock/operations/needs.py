"""What needs a person, first; then what waits by itself, and until when. From alerts, dead letters, gates and units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.clock import instant
from penstock.model.machine import Machine
from penstock.model.spoken import counted
from penstock.model.state import Meaning
from penstock.operations.alerts.commands import AlertList, list_alerts
from penstock.operations.alerts.machine import A
from penstock.operations.dead import PARKED, CauseRow, DeadFilter, list_dead
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, column
from penstock.operations.gates import GateList, GateRow, list_gates
from penstock.operations.past import At, lacking, said
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor

YOU, ITSELF = "you", "itself"
_OPEN = ("open", "busy")
_TOLD_BY_LETTERS = ("dead_letters", "parked")
_MOST = 10_000


class NeedsWanted(Parameters, frozen=True):
    at: At = None


class Step(Row, frozen=True):
    """What can be looked at or done: a reading or an operation by its command's name, and what it is asked with."""

    name: Annotated[str, column("The reading or operation.", show="reference")]
    given: Annotated[dict[str, str], column("Its parameters.")]


class Need(Row, frozen=True):
    """Something that waits."""

    who: Annotated[str, column("you: a person must act; itself: it goes on alone.", heading="needs")]
    what: Annotated[str, column("What it is.", show="text")]
    until: Annotated[datetime | None, column("Until when it waits, where that is known.")] = None
    since: Annotated[datetime | None, column("Since when.")] = None
    why: Annotated[str, column("What is the matter.", show="text")] = ""
    command: Annotated[str, column("What to type.", show="reference")] = ""
    meaning: Annotated[str, column("fault, or hold.", show="detail")] = str(Meaning.HOLD)
    units: Annotated[list[str], column("Units to look at.", show="detail")] = []
    look: Annotated[Step | None, column("Where more is told.", show="detail")] = None
    act: Annotated[list[Step], column("What can be done about it.", show="detail")] = []


@reading("needs", "What needs a person; then what waits by itself, and until when.")
def needs(ask: Ask[KernelSettings], wanted: NeedsWanted) -> Page[Need]:
    """Alerts that nobody has taken on, dead letters by cause, stopped gates, and what a lifecycle says waits.

    Of the past, parked units are among those that wait, and nobody knows until when.
    """
    letters = list(list_dead(ask, DeadFilter(at=wanted.at)).rows)
    found = [*_alerts(ask, letters, wanted.at), *map(_letters, letters), *_gates(ask, wanted.at)]
    found += [*_own(ask.then(wanted.at)), *_holds(ask, wanted.at)]
    found.sort(key=lambda one: (one.who != YOU, one.meaning != Meaning.FAULT))
    people = sum(one.who == YOU for one in found)
    note = None if found else "nothing needs anybody" if wanted.at is None else "nothing needed anybody then"
    return Page(
        rows=found,
        counts={"need a person": people, "wait by themselves": len(found) - people} if found else None,
        note=said(lacking(ask, ask.reader.kept(), wanted.at), note),
    )


READINGS = [needs]


def _alerts(ask: Ask[Any], letters: Sequence[CauseRow], at: datetime | None) -> Iterator[Need]:
    """Alerts that fire. One that only counts the dead letters below is left out."""
    machines = {one.machine for one in letters}
    for one in list_alerts(ask, AlertList(at=at, limit=_MOST)).rows:
        told = one.policy in _TOLD_BY_LETTERS and one.subject.partition("/")[0] in machines
        if one.status != A.FIRING or told:
            continue
        given = {"alerts": one.alert}
        yield Need(
            who=ITSELF if one.severity == "info" else YOU,
            what=one.says or one.alert,
            since=one.since,
            why=f"{one.severity or 'an'} alert {one.alert}",
            command=f"penstock alerts show {one.alert}",
            meaning=str(Meaning.HOLD if one.severity == "info" else Meaning.FAULT),
            units=[one.unit] if one.unit else [],
            look=Step(name="alerts show", given={"alert": one.alert}),
            act=[Step(name="alerts ack", given=given), Step(name="alerts silence", given=given)],
        )


def _letters(one: CauseRow) -> Need:
    kind = "parked unit" if one.status == PARKED else "dead letter"
    given = {"cause": one.cause}
    return Need(
        who=YOU,
        what=f"{counted(one.count, kind)} of {one.machine}",
        since=one.oldest,
        why=one.said if one.said == one.reason else f"{one.said} (the others are alike)",
        command=f"penstock dead show {one.cause}",
        meaning=str(Meaning.FAULT),
        units=[one.example],
        look=Step(name="dead show", given=given),
        act=[Step(name="dead retry", given=given), Step(name="dead dismiss", given=given)],
    )


def _gates(ask: Ask[Any], at: datetime | None) -> Iterator[Need]:
    """Gates that are not open. One that was stopped opens by nobody but a person."""
    for gate in list_gates(ask, GateList(at=at)).rows:
        if gate.state in _OPEN:
            continue
        given = {"gate": gate.gate}
        yield Need(
            who=YOU if gate.state == "stopped" else ITSELF,
            what=f"{gate.gate} is {gate.state}{_until(gate)}",
            until=gate.until,
            why=gate.reason or "",
            command=f"penstock gates list {gate.gate}",
            meaning=str(Meaning.FAULT if gate.state == "stopped" else Meaning.HOLD),
            look=Step(name="gates history", given=given),
            act=[Step(name="gates resume", given=given)],
        )


def _until(gate: GateRow) -> str:
    ends = f" until {gate.until:%Y-%m-%d %H:%M} UTC" if gate.until is not None else ""
    if gate.until is None and gate.state == "paused":
        ends = " until somebody resumes it"
    return ends + (f"; {gate.waiting:,} wait behind it" if gate.waiting else "")


def _own(ask: Ask[Any]) -> Iterator[Need]:
    """What the lifecycles themselves say."""
    for lifecycle in ask.program.app.own:
        if all(ask.reader.keeps(machine) for machine in lifecycle.machines):
            yield from lifecycle.needs(ask.program.ask(lifecycle, ask.reader, ask.now, who=ask.who))


def _holds(ask: Ask[Any], at: datetime | None) -> Iterator[Need]:
    """Units that wait for somebody else, and when they are looked at again."""
    driven = [machine for machine in ask.reader.kept() if machine.driven]
    holds = [(m, s) for m in driven for s in m.status if s.meaning is Meaning.HOLD]
    waiting = ask.reader.read(lambda cursor: _waiting(cursor, holds) if at is None else _waited(ask, cursor, holds, at))
    for (machine, state), (count, due) in zip(holds, waiting, strict=True):
        if count:
            yield Need(
                who=ITSELF,
                what=f"{counted(count, f'{machine.name} unit is', f'{machine.name} units are')} {state}",
                until=due,
                why=state.says,
                command=f"penstock units list --machine {machine.name} --status {state}",
                look=Step(name="units list", given={"machine": machine.name, "status": str(state)}),
            )


def _waiting(cursor: Cursor, holds: Sequence[tuple[Machine, Any]]) -> list[tuple[int, datetime | None]]:
    """How many are in each of these states, and when the first of them is due."""
    found = []
    for machine, state in holds:
        sql = f"SELECT count(*), min({machine.due}) FROM {machine.table} WHERE status = :state AND parked_at IS NULL"
        ((count, due),) = cursor.rows(sql, state=str(state))
        found.append((int(count), None if due is None else instant(due)))
    return found


def _waited(
    ask: Ask[Any], cursor: Cursor, holds: Sequence[tuple[Machine, Any]], at: datetime
) -> list[tuple[int, datetime | None]]:
    """The same at that moment: how many, parked ones included; when they were due is not known."""
    from penstock.ledger import flow

    counts = flow.counts_at(ask.reader.database, cursor, at)
    return [(counts.get(machine.name, {}).get(str(state), 0), None) for machine, state in holds]
