"""Which query a person means, and what keeps one from running: asked by all that people see and do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.lifecycles.queries.decide import Seen, decide
from penstock.lifecycles.queries.lock import (
    RunLock,
    closed_among,
    closed_gate,
    closed_words,
    holder,
    shut_gates,
    shut_then,
)
from penstock.lifecycles.queries.machine import Query, S, query
from penstock.lifecycles.queries.registry import Configured, registry
from penstock.lifecycles.queries.settings import RUN_GATE, QueriesSettings
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.near import near
from penstock.model.outcome import Wait
from penstock.operations.declare import Ask

if TYPE_CHECKING:
    from penstock.ledger.gates.status import GateStatus
    from penstock.operations.gates import GateRow
    from penstock.operations.reader import Reader

_NAMED = 5


class Known(Struct, frozen=True):
    """A query: as the configuration has it, as the ledger has it, or both."""

    key: str
    name: str
    client: str
    own: Configured | None = None
    unit: Query | None = None


class Keeps(Struct, frozen=True):
    """Why a query does not run now, and when it will; None: nobody knows, or somebody must act."""

    why: str | None
    next_at: datetime | None = None


class Pipeline(Struct, frozen=True):
    """What is the same for all queries: who holds the run lock, why none may run, and whether anybody works."""

    held: RunLock | None
    closed: Keeps | None
    served: bool
    #: Of the past: all gates that were shut.
    shut: Mapping[str, GateRow] | None = None

    def says(self, known: Sequence[Known]) -> str:
        """Who holds the lock, as a sentence; of the past, which query was running."""
        parts = []
        if self.closed is not None:
            until = "" if self.closed.next_at is None else f" (until {moment_text(self.closed.next_at)})"
            go_on = "" if self.shut is not None else "; 'penstock queries resume' lets them go on"
            parts.append(f"{self.closed.why}{until}{go_on}")
        if self.shut is not None:
            names = [one.name for one in known if one.unit is not None and one.unit.status is S.RUNNING]
            return "; ".join([*parts, f"{', '.join(names) or 'no query'} was running"])
        if self.held is not None:
            parts.append(f"the run lock is held: {holds(self.held, known)}")
        else:
            parts.append("nobody holds the run lock")
        if not self.served:
            parts.append("no running worker serves queries; 'penstock up' starts one")
        return "; ".join(parts)


def holds(held: RunLock, known: Sequence[Known]) -> str:
    """Who runs which query, by its name."""
    name = next((one.name for one in known if one.key == held.query_key), held.query_key)
    return f"worker {held.held_by} on {held.host} (process {held.pid}) runs {name}"


def require_queries(reader: Reader) -> None:
    """Refuse a ledger that has no queries. Raises UsageError."""
    if not reader.keeps(query):
        raise UsageError("this ledger has no tables for queries; 'penstock db upgrade' adds them")


def known_queries(ask: Ask[QueriesSettings]) -> list[Known]:
    """Those of the configuration first, as it has them; then those that only the ledger has."""
    require_queries(ask.reader)
    ids = [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows("SELECT unit_id FROM query_state"))]
    found: list[Query] = ask.reader.get_many(query, ids) if ids else []
    units = {unit.query_key: unit for unit in found}
    own = registry(ask.settings)
    listed = [Known(one.key, one.name, one.client, one, units.get(one.key)) for one in own.values()]
    # What it was called then is not known where it was called something else since.
    gone = [Known(u.query_key, u.name or u.query_key, u.client, None, u) for u in found if u.query_key not in own]
    return listed + sorted(gone, key=lambda one: (one.name, one.key))


def find_query(known: Sequence[Known], text: str) -> Known:
    """The query that a person names: by its key, the beginning of it, or its name. Raises UsageError, UnknownUnit."""
    wanted = text.strip().removeprefix(f"{query.name}:")
    for these in (
        [one for one in known if one.key == wanted],
        [one for one in known if one.name == wanted and one.own is not None],
        [one for one in known if one.name == wanted],
        [one for one in known if wanted and one.key.startswith(wanted)],
    ):
        if len(these) > 1:
            keys = ", ".join(one.key for one in these[:_NAMED])
            more = f" and {len(these) - _NAMED:,} more" if len(these) > _NAMED else ""
            raise UsageError(f"{text!r:.100} matches several queries: {keys}{more}; give more of the key")
        if these:
            return these[0]
    raise UnknownUnit(f"no query is called {text!r:.100}; {_perhaps(wanted, known)}")


def _perhaps(wanted: str, known: Sequence[Known]) -> str:
    if not known:
        return "there is none; add [queries.queries.NAME] to penstock.toml"
    close = near(wanted, [*(one.name for one in known), *(one.key for one in known)])
    if close:
        return f"did you mean {close[0]}?"
    names = ", ".join(one.name for one in known[:_NAMED])
    return f"there are {names}{' and others' if len(known) > _NAMED else ''}; 'penstock queries list' lists them"


def find_client(ask: Ask[QueriesSettings], known: Sequence[Known], name: str) -> str:
    """A client of the configuration, or of a query that the ledger has. Raises UsageError that says which there are."""
    clients = sorted({*ask.settings.clients(), *(one.client for one in known)})
    if name not in clients:
        close = near(name, clients)
        there = f"there are {', '.join(clients)}" if clients else "there is none; add one below [queries]"
        raise UsageError(f"no client is called {name!r:.100}; {f'did you mean {close[0]}?' if close else there}")
    return name


def pipeline(reader: Reader, at: datetime | None = None) -> Pipeline:
    """How the pipeline as a whole stands, or stood: who held the run lock then, and who served it, is not known."""
    from penstock.ledger.history import workers_of

    if at is not None:
        gates = shut_then(reader, at)
        return Pipeline(None, _closed(gates.get(RUN_GATE)), served=True, shut=gates)
    held, workers = reader.read(lambda cursor: (holder(cursor), workers_of(reader.database, cursor)))
    closed = _closed(shut_gates(reader, [RUN_GATE]).get(RUN_GATE))
    return Pipeline(held, closed, any(query.name in worker.machines for worker in workers))


def _closed(shut: GateStatus | GateRow | None) -> Keeps | None:
    return None if shut is None else Keeps(closed_words("the whole pipeline", shut), shut.until)


def keeps(ask: Ask[QueriesSettings], one: Known, all_of_them: Pipeline, known: Sequence[Known]) -> Keeps:
    """What keeps a query from running now, by the decision that workers make; of the past, as far as it is known."""
    unit, own, then = one.unit, one.own, all_of_them.shut
    if unit is None and then is not None:
        return Keeps("it was not there yet")
    if unit is None:
        paused = own is not None and own.paused
        why = f"paused by the configuration: [queries.queries.{one.name}]" if paused else "a worker will create it soon"
        return Keeps(why)
    if unit.parked_at is not None:
        return Keeps(f"set aside: {unit.parked_reason}; 'penstock units unpark query:{one.key}' lets it go on")
    if unit.status is S.RUNNING:
        return Keeps(None)
    closed = closed_gate(ask.reader, one.key, one.client) if then is None else closed_among(then, one.key, one.client)
    seen = Seen() if closed is None else Seen(*closed)
    decision = decide(unit, max(ask.now, unit.due_at or ask.now), ask.settings, seen)
    if isinstance(decision, Wait):
        until = decision.until if closed is None else seen.until
        if then is not None and unit.due_at is None:
            return Keeps(decision.reason)
        return Keeps(decision.reason, until and max(until, unit.due_at or until))
    if all_of_them.closed is not None:
        return all_of_them.closed
    if unit.due_at is None or unit.due_at > ask.now or then is not None:
        return Keeps(None, unit.due_at)
    held = all_of_them.held
    if held is not None and held.query_key != one.key:
        return Keeps(f"waits for the run lock: {holds(held, known)}", unit.due_at)
    return Keeps("a worker takes it next", unit.due_at)


def moment_text(moment: datetime) -> str:
    """A moment within a sentence."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"
