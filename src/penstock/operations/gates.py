"""The gates to other people's APIs: what they let through, and holding or opening them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from penstock.model import spoken
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.limits import GateLimits
from penstock.model.near import near
from penstock.model.state import State, done, fault, hold, work
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.plan import GateChange
from penstock.settings.kernel import KernelSettings
from penstock.settings.scalars import span_text

if TYPE_CHECKING:
    from penstock.ledger.gates.log import Stood
    from penstock.ledger.gates.status import GateStatus
    from penstock.ledger.store.database import Database

_NEAREST = 3


class GateList(Parameters, frozen=True):
    gate: Annotated[str | None, argument("Only this gate and those below it.", example="shop/acme")] = None
    at: Annotated[
        datetime | None,
        option("As they stood at this instant, without budgets.", example="2026-11-15T19:31:00Z"),
    ] = None


class GateNamed(Parameters, frozen=True):
    gate: Annotated[str, argument("A gate, or a provider or account: then all gates below it.", example="shop/acme")]


class GatePause(GateNamed, frozen=True):
    span: Annotated[
        timedelta | None, option("Reopen by itself after this time; by default only 'resume' opens it.", example="6h")
    ] = msgspec.field(default=None, name="for")


class GateHistory(GateNamed, frozen=True):
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000)] = 50
    after: Annotated[int | None, option("Continue after an earlier page: the cursor that it ended with.")] = None
    at: Annotated[
        datetime | None, option("Only what had happened by this instant.", example="2026-11-15T19:31:00Z")
    ] = None


class GateChangeRow(Row, frozen=True):
    at: Annotated[datetime, column("When.", heading="when")]
    gate: Annotated[str, column("The gate.", show="reference")]
    what: Annotated[str, column("closed, opened, probe, paused, resumed, stopped or budget.", show="state")]
    until: Annotated[datetime | None, column("Until when, where that is known.")]
    by: Annotated[str | None, column("Who or what did it.")]
    reason: Annotated[str | None, column("Why.", show="text")]
    epoch: Annotated[int, column("How often it was closed until then.", show="detail")]
    number: Annotated[int, column("The row's number in the log.", show="detail")]


class LimitRow(Row, frozen=True):
    name: Annotated[str, column("The limit.")]
    rate: Annotated[float, column("How much comes back in a second.")]
    burst: Annotated[float, column("How much it holds.")]
    cost: Annotated[float, column("How much a call takes.")]
    left: Annotated[float, column("How much is there now.")]


class G(State):
    """How a gate stands."""

    OPEN = done("open", "calls go through")
    BUSY = work("busy", "its budget is spent, and comes back by itself")
    HALF_OPEN = work("half-open", "one call goes first, to see whether the provider is back")
    CLOSED = hold("closed", "no call goes through for a time")
    PAUSED = hold("paused", "somebody holds it")
    STOPPED = fault("stopped", "a fatal error holds it")


class GateRow(Row, frozen=True):
    """A gate. What is empty beside its state is not known, as of the past."""

    gate: Annotated[str, column("The gate.", show="reference", leads="gates history")]
    state: Annotated[G, column("open, busy, closed, half-open, paused or stopped.", show="state")]
    until: Annotated[datetime | None, column("Until when, where that is known.")] = None
    waiting: Annotated[int | None, column("Units that are due behind it; counting stops at 10,000 of a machine.")] = (
        None
    )
    inside: Annotated[int | None, column("Units whose calls are under way.")] = None
    most_inside: Annotated[int | None, column("How many may be inside at once.", show="detail")] = None
    budget: Annotated[str, column("How much of each limit is left.")] = ""
    reason: Annotated[str | None, column("Why it is not open.", show="text")] = None
    by: Annotated[str | None, column("Who paused it.", show="detail")] = None
    throttles: Annotated[int | None, column("How often in a row it was closed by the provider.", show="detail")] = None
    failures: Annotated[int | None, column("Calls that failed in a row.", show="detail")] = None
    failing_since: Annotated[datetime | None, column("Since when no call came through.", show="detail")] = None
    limits: Annotated[list[LimitRow], column("Its limits.", show="detail")] = []


@reading("gates list", "Gates: open or why not, their budgets, and who waits.")
def list_gates(ask: Ask[KernelSettings], wanted: GateList) -> Page[GateRow]:
    """Of the past it is known what each was changed to, and not what was left of a budget or waited behind it.

    One that was made later counts as open.
    """
    rows, note = _present(ask) if wanted.at is None else gates_then(ask.reader.database, wanted.at)
    chosen = [row for row in rows if wanted.gate is None or _under(row.gate, wanted.gate)]
    if wanted.gate is not None and not chosen:
        raise _unknown(wanted.gate, [row.gate for row in rows])
    return Page(rows=chosen, note=note if rows else "no gates yet: one is made when a unit first needs it")


@reading("gates history", "What became of a gate, newest first.")
def gate_history(ask: Ask[KernelSettings], wanted: GateHistory) -> Page[GateChangeRow]:
    """Calls are not in it, only what changed. Of many calls that were refused together one row is left."""
    from penstock.ledger.gates import log

    _below(ask, wanted.gate, [limits.name for limits in ask.program.limits()])
    found = log.gate_history(
        ask.reader.database, wanted.gate, most=wanted.limit + 1, before=wanted.after, until=wanted.at
    )
    rows = [
        GateChangeRow(
            at=one.at,
            gate=one.gate_id,
            what=one.what,
            until=one.until,
            by=one.by,
            reason=one.reason,
            epoch=one.epoch,
            number=one.seq,
        )
        for one in found[: wanted.limit]
    ]
    more = len(found) > wanted.limit
    return Page(rows=rows, next=str(rows[-1].number) if more else None, note=None if rows else "nothing has changed it")


@operation("gates pause", "Close gates: no more calls go through.")
def pause(ask: Ask[KernelSettings], wanted: GatePause) -> GateChange:
    """Calls that are under way end. Units that are due wait, and no attempt is counted."""
    ahead = [limits.name for limits in ask.program.limits()]
    gates = _below(ask, wanted.gate, ahead)
    how = "" if wanted.span is None else f" for {span_text(wanted.span)}"
    return GateChange(
        wanted.gate, gates, f"pause {_counted(gates or [wanted.gate])}{how}", pause=True, span=wanted.span
    )


@operation("gates resume", "Open gates, whatever closed them.", wants_reason=False)
def resume(ask: Ask[KernelSettings], wanted: GateNamed) -> GateChange:
    """A pause, a fatal error, a throttle or the breaker. Their budgets begin empty."""
    closed = {gate.gate_id for gate in _statuses(ask) if gate.state != "open"}
    gates = [gate for gate in _below(ask, wanted.gate) if gate in closed]
    return GateChange(wanted.gate, gates, f"resume {_counted(gates)}", pause=False)


READINGS = [list_gates, gate_history]
OPERATIONS = [pause, resume]


def _statuses(ask: Ask[Any], *, counts: bool = False) -> list[GateStatus]:
    from penstock.ledger.gates.status import COUNTED_AT_MOST, gate_statuses

    database = ask.reader.database
    return database.read(lambda cursor: gate_statuses(database, cursor, counts=counts, at_most=COUNTED_AT_MOST))


def _present(ask: Ask[Any]) -> tuple[list[GateRow], str | None]:
    return [_row(gate) for gate in _statuses(ask, counts=True)], None


def gates_then(database: Database, at: datetime) -> tuple[list[GateRow], str | None]:
    """Every gate as it stood, and a sentence where the log does not reach back so far."""
    from penstock.ledger.gates import log

    found, oldest = database.read(lambda cursor: (log.gates_as_of(database, cursor, at), log.known_from(cursor)))
    note = None
    if oldest is not None and at < oldest:
        note = f"changes of gates are known from {instant_text(oldest)} on; before that they count as open"
    return [_stood(one, at) for one in found], note


def _stood(one: Stood, at: datetime) -> GateRow:
    """A gate after its last change by then."""
    from penstock.ledger.gates.log import BREAKER
    from penstock.ledger.gates.status import BREAKER_OPEN

    last = one.told
    if last is None:
        return GateRow(gate=one.gate_id, state=G.OPEN)
    shut = last.until is not None and last.until > at
    state, reason = _STOOD[last.what], last.reason
    if last.what == "paused" and last.until is not None:
        state = G.CLOSED if shut else G.OPEN  # a pause that ends by itself closes a gate, as a provider does
    elif state is G.CLOSED and not shut:
        # Its time is over, and no call has come through yet.
        state = G.HALF_OPEN if last.by == BREAKER or (one.answered and not one.metered) else G.OPEN
    if state is G.OPEN:
        return GateRow(gate=one.gate_id, state=state)
    if state is G.HALF_OPEN:
        reason = f"one call {'is under way' if shut else 'goes first'}, to see whether the provider is back"
    elif last.by == BREAKER:
        reason = f"{reason}{BREAKER_OPEN}"
    return GateRow(gate=one.gate_id, state=state, until=last.until if shut else None, reason=reason, by=last.by)


_STOOD = {
    "closed": G.CLOSED, "probe": G.HALF_OPEN, "paused": G.PAUSED, "stopped": G.STOPPED,
    "opened": G.OPEN, "resumed": G.OPEN,
}  # fmt: skip
"""What a gate is after a change."""


def _row(gate: GateStatus) -> GateRow:
    limits = [
        LimitRow(name=one.name, rate=one.rate, burst=one.burst, cost=one.cost, left=one.left) for one in gate.limits
    ]
    return GateRow(
        gate=gate.gate_id,
        state=G(gate.state),
        until=gate.until,
        waiting=gate.waiting,
        inside=gate.in_flight,
        most_inside=gate.max_in_flight,
        budget="  ".join(f"{x.name} {x.left:,.4g} of {x.burst:,.4g} (+{x.rate:,.4g}/s)" for x in limits),
        reason=gate.reason,
        by=gate.by,
        throttles=gate.throttles,
        failures=gate.failures,
        failing_since=gate.failing_since,
        limits=limits,
    )


def _below(ask: Ask[Any], gate: str, ahead: Sequence[str] = ()) -> list[str]:
    """The gates of that name and below it; those `ahead` may have none yet. Raises UsageError."""
    found = [one.gate_id for one in _statuses(ask)]
    chosen = [one for one in found if _under(one, gate)]
    if not chosen and gate not in ahead:
        raise _unknown(gate, [*found, *ahead])
    return chosen


def _under(gate_id: str, prefix: str) -> bool:
    return GateLimits(prefix).covers(gate_id)


def _unknown(gate: str, known: Sequence[str]) -> UsageError:
    if not known:
        return UsageError(f"no gate is called {gate!r}; there are none yet: one is made when a unit first needs it")
    within = [one for one in known if gate in one]
    close = list(dict.fromkeys([*within, *near(gate, known, _NEAREST)]))[:_NEAREST] or known[:_NEAREST]
    more = f", and {len(known) - len(close):,} more" if len(known) > len(close) else ""
    return UsageError(f"no gate is called {gate!r}; there is {', '.join(close)}{more}")


def _counted(gates: Sequence[str]) -> str:
    return spoken.counted(len(gates), "gate")
