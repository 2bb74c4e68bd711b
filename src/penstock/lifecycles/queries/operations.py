"""What people do to queries: run them now, pause and resume them, and have more of history read.

None of it is needed: queries run by themselves. A query that is running is left alone, because whoever changes it takes
it from the worker that runs it, and the run would be abandoned.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Any

import msgspec

from penstock.lifecycles.queries.lock import closed_gate, closed_words, shut_gates
from penstock.lifecycles.queries.lookup import (
    Known,
    find_client,
    find_query,
    holds,
    known_queries,
    moment_text,
    pipeline,
)
from penstock.lifecycles.queries.machine import Query, S, query
from penstock.lifecycles.queries.passes import begin_of, day_of, read_pass
from penstock.lifecycles.queries.registry import Configured
from penstock.lifecycles.queries.runs import seed_day
from penstock.lifecycles.queries.settings import EARLIEST, RUN_GATE, QueriesSettings, client_gate, query_gate
from penstock.lifecycles.queries.showing import WhichQuery
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Move
from penstock.model.unit import Ref, replace
from penstock.operations.declare import Ask, operation
from penstock.operations.fields import Parameters, argument, option
from penstock.operations.plan import GateChange, Together, Wake
from penstock.settings.scalars import span_text


class RunParameters(Parameters, frozen=True):
    """Which queries."""

    query: Annotated[
        list[str], argument("Queries: names, keys, or the beginnings of keys.", example="python-madrid")
    ] = []
    every: Annotated[bool, option("All queries of the configuration.")] = msgspec.field(default=False, name="all")


class GateParameters(Parameters, frozen=True):
    """What is held or let go."""

    query: Annotated[
        str | None,
        argument(
            "A query: its name, its key, or the beginning of its key. Without one: all queries.",
            example="python-madrid",
        ),
    ] = None
    client: Annotated[str | None, option("All queries of this client, and every call to it.")] = None


class PauseParameters(GateParameters, frozen=True):
    """What is held, and for how long."""

    span: Annotated[
        timedelta | None, option("Resume by itself after this time; by default only 'resume' does.", example="6h")
    ] = msgspec.field(default=None, name="for")


class SeedParameters(WhichQuery, frozen=True):
    """Which history."""

    day: Annotated[date | None, option("Read back to this day.", example="2026-01-01")] = msgspec.field(
        default=None, name="from"
    )
    again: Annotated[bool, option("Read history again, from the newest record down.")] = False


class _Target(msgspec.Struct, frozen=True):
    """What a person means by a query, a client, or nothing: its gate, how it is called, and its queries."""

    gate: str
    what: str
    subject: str
    queries: Sequence[Known]


@operation("run", "Run queries now, without waiting for their turn.", wants_reason=False)
def run(ask: Ask[QueriesSettings], wanted: RunParameters) -> Wake:
    """A worker runs them, one after another. One whose client is closed runs when that opens."""
    known = known_queries(ask)
    chosen = _chosen(known, wanted)
    skipped = {_ref(one): why for one in chosen if (why := _why_no_run(one)) is not None}
    if len(chosen) == len(skipped) == 1:
        raise UsageError(f"query {chosen[0].name} cannot be run: {skipped[_ref(chosen[0])]}")
    ready = [one for one in chosen if _ref(one) not in skipped]
    whole = pipeline(ask.reader)
    warnings = [f"{whole.closed.why}; 'penstock queries resume' lets queries go on."] if whole.closed else []
    for one in ready:
        closed = closed_gate(ask.reader, one.key, one.client)
        if closed is not None:
            until = "" if closed[1] is None else f" until {moment_text(closed[1])}"
            warnings.append(f"{one.name} waits{until}: {closed[0]}.")
    if whole.held is not None and any(one.key != whole.held.query_key for one in ready):
        warnings.append(f"One query runs at a time; first, {holds(whole.held, known)}.")
    if not whole.served:
        warnings.append("No running worker serves queries; 'penstock up' starts one.")
    names = ready[0].name if len(ready) == 1 else f"{len(ready):,} queries"
    return Wake([_ref(one) for one in ready], skipped, f"run {names} now", warnings)


@operation("pause", "Pause all queries, those of a client, or one.")
def pause(ask: Ask[QueriesSettings], wanted: PauseParameters) -> GateChange:
    """A run that is under way goes on to its end, unless its client is paused: then it stops at its next call."""
    target = _target(ask, wanted)
    if wanted.span is not None and wanted.span <= timedelta():
        raise UsageError("a pause lasts more than zero seconds, for example 6h")
    shut = shut_gates(ask.reader, [target.gate]).get(target.gate)
    if shut is not None and shut.state != "closed":
        raise UsageError(f"{closed_words(target.subject, shut)}; there is nothing to pause")
    span = "" if wanted.span is None else f" for {span_text(wanted.span)}"
    running = [one.name for one in target.queries if one.unit is not None and one.unit.status is S.RUNNING]
    ends = "stops at its next call" if wanted.client is not None else "goes on to its end"
    return GateChange(
        target.gate,
        _there(ask, target.gate),
        f"pause {target.what}{span}",
        pause=True,
        span=wanted.span,
        warnings=[f"{name} is running; its run {ends}." for name in running],
    )


@operation("resume", "Resume all queries, those of a client, or one.", wants_reason=False)
def resume(ask: Ask[QueriesSettings], wanted: GateParameters) -> GateChange:
    """Whatever closed them: a person, a client that limited the rate of calls, or wrong credentials."""
    target = _target(ask, wanted)
    others = _held_besides(ask, wanted, target)
    if target.gate not in shut_gates(ask.reader, [target.gate]):
        said = f"{target.subject} is not paused"
        raise UsageError(
            f"{said} itself, but {'; and '.join(others)}" if others else f"{said}; {_instead(ask, target)}"
        )
    waiting = [one.unit for one in target.queries if one.unit is not None and one.unit.status is not S.RUNNING]
    later = [unit for unit in waiting if unit.due_at is not None and unit.due_at > ask.now]
    wakes = [] if target.gate == RUN_GATE else [Ref(query.name, unit.unit_id) for unit in later]
    return GateChange(
        target.gate,
        [target.gate],
        f"let {target.what} go on",
        pause=False,
        wakes=wakes,
        warnings=[f"It still waits: {other}." for other in others],
    )


@operation("seed", "Read more of a query's history, or all of it again.")
def seed(ask: Ask[QueriesSettings], wanted: SeedParameters) -> Together:
    """The next run starts it, from the newest record down. Nothing is stored twice."""
    one = find_query(known_queries(ask), wanted.query)
    unit, own = _resting(one)
    if wanted.day is None and not wanted.again:
        raise UsageError("give a day as 'from' to read further back, or 'again' to read all of history once more")
    now_to = seed_day(unit, ask.now, own)
    day = now_to if wanted.day is None else wanted.day
    if wanted.day is not None:
        _refuse_day(ask, one, own, unit, wanted.day)
    under_way = None if wanted.again else read_pass(unit.seeding)
    if under_way is not None:
        under_way = msgspec.structs.replace(under_way, until=begin_of(day, own.zone))
    after = replace(
        unit,
        seed_until=day,
        seeded_at=None,
        seeding=None if under_way is None else under_way.document(),
        due_at=ask.now,
    )
    says = f"read the history of {one.name} back to {day}"
    if wanted.again:
        says += ", from the newest record down once more"
    return Together(
        says,
        moves=[Move(unit, after, ask.reason or says, Actor.OPERATOR)],
        warnings=_seed_warnings(unit, own, day, ask.now, begun=under_way is not None),
    )


OPERATIONS: list[Any] = [run, pause, resume, seed]


def _ref(one: Known) -> Ref:
    return Ref(query.name, one.key)


def _chosen(known: Sequence[Known], wanted: RunParameters) -> list[Known]:
    """The queries that are named, each once. Raises UsageError."""
    if wanted.every and wanted.query:
        raise UsageError("give queries or 'all', not both")
    if wanted.every:
        return [one for one in known if one.own is not None]
    if not wanted.query:
        raise UsageError("name queries to run, or give 'all'; 'penstock queries list' lists them")
    found = [find_query(known, text) for text in wanted.query]
    return list({one.key: one for one in found}.values())


def _why_no_run(one: Known) -> str | None:
    if one.own is None:
        return "it is no longer in the configuration"
    if one.own.paused:
        return f"it is paused by the configuration: [queries.queries.{one.name}]"
    if one.unit is None:
        return "the ledger does not have it yet; 'penstock up' creates it and runs it"
    if one.unit.parked_at is not None:
        return f"it is set aside; 'penstock units unpark {_ref(one)}' lets it go on"
    if one.unit.status is S.RUNNING:
        return "it is running already"
    return None


def _target(ask: Ask[QueriesSettings], wanted: GateParameters) -> _Target:
    """What is to be held or let go. Raises UsageError."""
    known = known_queries(ask)
    if wanted.query is not None and wanted.client is not None:
        raise UsageError("give a query or a client, not both")
    if wanted.query is not None:
        one = _named(ask, known, wanted.query)
        return _Target(query_gate(one.key), f"query {one.name}", f"query {one.name}", [one])
    if wanted.client is not None:
        client = find_client(ask, known, wanted.client)
        its = [one for one in known if one.client == client]
        return _Target(client_gate(client), f"the queries of client {client}", f"client {client}", its)
    return _Target(RUN_GATE, "all queries", "the whole pipeline", known)


def _named(ask: Ask[QueriesSettings], known: Sequence[Known], text: str) -> Known:
    """The query of that name; a client's name is never the beginning of a key. Raises UsageError, UnknownUnit."""
    clients = {*ask.settings.clients(), *(one.client for one in known)}
    if text in clients and text not in {one.name for one in known}:
        raise UsageError(f"{text} is a client, not a query; give it as the client")
    return find_query(known, text)


def _there(ask: Ask[QueriesSettings], gate: str) -> list[str]:
    """The gate, if the ledger has it already."""
    rows = ask.reader.read(lambda cursor: cursor.rows("SELECT gate_id FROM gate WHERE gate_id = :gate", gate=gate))
    return [str(row[0]) for row in rows]


def _held_besides(ask: Ask[QueriesSettings], wanted: GateParameters, target: _Target) -> list[str]:
    """What else holds what is to be resumed, and how that is ended."""
    one = target.queries[0] if wanted.query is not None else None
    client = wanted.client if one is None else one.client
    shut = shut_gates(ask.reader, [RUN_GATE, *([] if client is None else [client_gate(client)])])
    found = []
    if one is not None and one.own is not None and one.own.paused:
        found.append(f"it is paused by the configuration: [queries.queries.{one.name}]")
    if one is not None and client_gate(one.client) in shut:
        words = closed_words(f"its client {client}", shut[client_gate(one.client)])
        found.append(f"{words}; 'penstock queries resume --client {client}' opens it")
    if target.gate != RUN_GATE and RUN_GATE in shut:
        found.append(f"{closed_words('the whole pipeline', shut[RUN_GATE])}; 'penstock queries resume' lets it go on")
    return found


def _instead(ask: Ask[QueriesSettings], target: _Target) -> str:
    """What a person does instead: for the whole pipeline, resume what is held within it."""
    if target.gate == RUN_GATE:
        names = {client_gate(client): f"--client {client}" for client in {one.client for one in target.queries}}
        names |= {query_gate(one.key): one.name for one in target.queries}
        if shut := shut_gates(ask.reader, list(names)):
            return f"'penstock queries resume {names[next(iter(shut))]}' opens what is"
    return "there is nothing to resume"


def _resting(one: Known) -> tuple[Query, Configured]:
    """A query that may be changed. Raises UsageError."""
    if one.own is None:
        raise UsageError(f"query {one.name}: it is no longer in the configuration, so it is not read any more")
    if one.unit is None:
        raise UsageError(
            f"query {one.name} is not in the ledger yet; 'penstock up' creates it, and seed_from says how far back"
        )
    if one.unit.status is S.RUNNING:
        raise UsageError(
            f"query {one.name} is running, and its run would be lost; try again when it is over:"
            f" 'penstock queries show {one.name} --watch' waits for that"
        )
    return one.unit, one.own


def _refuse_day(ask: Ask[QueriesSettings], one: Known, own: Configured, unit: Query, day: date) -> None:
    """Raises UsageError for a day that adds nothing to what is read anyway."""
    today, now_to = day_of(ask.now, own.zone), seed_day(unit, ask.now, own)
    if day > today:
        raise UsageError(f"{day} lies in the future; it is {today} where {own.client} is")
    if day < EARLIEST:
        raise UsageError(f"{day} is before {EARLIEST}, which no provider lists")
    if day >= now_to:
        done = "is seeded" if unit.seeded_at is not None else "is to be seeded"
        raise UsageError(
            f"query {one.name} {done} back to {now_to} already; give an earlier day, or 'again' alone to read it anew"
        )


def _seed_warnings(unit: Query, own: Configured, day: date, now: datetime, *, begun: bool) -> list[str]:
    """Which days are read, and which of them the provider did not list the last time."""
    oldest = unit.last_processed_date
    today = day_of(now, own.zone)
    top = oldest if begun and oldest is not None else today
    said = [f"Days from {top} back to {day} are read, {own.max_pages:,} pages in a run at most."]
    if not begun and oldest is not None and oldest <= today:
        said.append(f"Those from {oldest} on were read before: what changed is updated, nothing is doubled.")
    if unit.unreachable_before is not None and day < unit.unreachable_before:
        said.append(f"The last time, the provider listed nothing before {unit.unreachable_before}.")
    return said
