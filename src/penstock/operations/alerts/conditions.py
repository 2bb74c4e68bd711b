"""What the kernel's policies ask of the ledger. Each condition says what is true now; a false one says nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise

from penstock.ledger.flow import Window, activity
from penstock.ledger.gates.budget import breaker_open
from penstock.ledger.gates.status import gate_statuses
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.store.statements import dead_letters
from penstock.model.clock import instant, instant_text
from penstock.model.machine import Machine
from penstock.model.state import Meaning, State
from penstock.operations.alerts.machine import machine as alert
from penstock.operations.alerts.policy import Condition, Found, Policy, Watched
from penstock.settings.kernel import KernelSettings
from penstock.settings.scalars import span_text
from penstock.worker.schedule_unit import machine as schedule

#: How long a unit may stay in a state without moving, by what the state means. The others may as long as they like.
_DWELL = {Meaning.WORK: timedelta(days=1), Meaning.HOLD: timedelta(days=7)}
_HISTORY = timedelta(days=7)
_LATELY = timedelta(hours=2)
_ACTIVE_HOURS = 10
_JUDGED_FROM = 20
_MOST_EVENTS = 10_000


def _machines(watched: Watched, policy: Policy) -> list[Machine]:
    return [one for name, one in sorted(watched.ledger.machines.items()) if name != alert.name and policy.wants(name)]


def dead(watched: Watched, policy: Policy) -> Iterator[Found]:
    """So many units of a machine have failed, are not tried again by themselves and were not dismissed."""
    for machine in _machines(watched, policy):
        if not machine.dead:
            continue
        sql = (
            f"SELECT count(*), min(t.unit_id) FROM {machine.table} t WHERE {dead_letters(machine)}"
            f" AND t.parked_at IS NULL AND t.{machine.due} IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM dismissal d WHERE d.machine = :machine AND d.unit_id = t.unit_id"
            " AND d.version = t.version)"
        )
        count, example = _one(watched, sql, machine=machine.name)
        severity = policy.severity_of(int(count))
        if severity is not None:
            are = "units have" if count != 1 else "unit has"
            says = f"{count:,} {machine.name} {are} failed; 'penstock dead list --machine {machine.name}'"
            yield Found(machine.name, severity, says, {"count": int(count)}, f"{machine.name}:{example}")


def parked(watched: Watched, policy: Policy) -> Iterator[Found]:
    """Units were set aside for a person."""
    for machine in _machines(watched, policy):
        if not machine.driven:
            continue
        sql = f"SELECT count(*), min(unit_id) FROM {machine.table} WHERE parked_at IS NOT NULL"
        count, example = _one(watched, sql)
        if count:
            are = "units are" if count != 1 else "unit is"
            says = f"{count:,} {machine.name} {are} parked; 'penstock units list --machine {machine.name} --parked'"
            yield Found(machine.name, policy.severity, says, {"count": int(count)}, f"{machine.name}:{example}")


def gates(watched: Watched, policy: Policy) -> Iterator[Found]:
    """Gates that a fatal error stopped, or whose breaker is open."""
    database = watched.ledger.database
    for gate in database.read(lambda cursor: gate_statuses(database, cursor)):
        subject = gate.gate_id
        if gate.state == "stopped":
            subject = "/".join(subject.split("/")[:2])
            says = f"{subject} is stopped: {gate.reason}; mend it, then 'penstock gates resume {subject}'"
        elif breaker_open(gate.throttles, gate.failures):
            says = f"{subject} does not answer: {gate.reason or 'its breaker is open'}"
        else:
            continue
        facts = {"state": gate.state, "throttles": gate.throttles, "failures": gate.failures}
        yield Found(subject, policy.severity, says, facts)


def throttles(watched: Watched, policy: Policy) -> Iterator[Found]:
    """A provider has asked one gate to slow down more often than that within the window."""
    for gate, count in throttled(watched.ledger.database, watched.now - policy.window).items():
        severity = policy.severity_of(count)
        if severity is not None:
            says = f"{gate} was throttled {count} times in {span_text(policy.window)}; call it less often"
            yield Found(gate, severity, says, {"count": count})


def throttled(database: Database, since: datetime) -> Counter[str]:
    """How often each gate was closed by its provider since then."""
    sql = (
        "SELECT payload FROM event_log WHERE event_type = 'gate.throttled'"
        f" AND created_at >= {database.sql.instant('since')} ORDER BY created_at DESC LIMIT {_MOST_EVENTS}"
    )
    rows = database.read(lambda cursor: cursor.rows(sql, since=instant_text(since)))
    return Counter(str(_document(row[0]).get("gate")) for row in rows)


def schedules(watched: Watched, policy: Policy) -> Iterator[Found]:
    """A periodic job has failed so many times in a row."""
    failing = "failures > 0 AND status = 'active'"
    sql = f"SELECT name, failures, last_error FROM {schedule.table} WHERE {failing} ORDER BY name"
    for name, failures, error in watched.ledger.read(lambda cursor: cursor.rows(sql)):
        severity = policy.severity_of(int(failures))
        if severity is not None:
            says = f"the schedule {name} has failed {failures} times in a row: {error}"
            yield Found(str(name), severity, says, {"failures": int(failures)}, f"{schedule.name}:{name}")


def success_rate(watched: Watched, policy: Policy) -> Iterator[Found]:
    """Of the units that ended within the window, too few ended well. The thresholds are shares that failed."""
    for machine in _machines(watched, policy):
        good = [str(s) for s in machine.status if s.meaning is Meaning.DONE]
        bad = [str(s) for s in machine.status if s.meaning is Meaning.FAULT]
        if not good or not bad or not machine.driven:
            continue
        counts = _arrived(watched, machine.name, policy.window)
        ended, failed = sum(counts[s] for s in good + bad), sum(counts[s] for s in bad)
        severity = policy.severity_of(failed / ended) if ended >= _JUDGED_FROM else None
        if severity is not None:
            rate, within = 1 - failed / ended, span_text(policy.window)
            says = f"{rate:.1%} of {ended:,} {machine.name} units that ended within {within} succeeded"
            yield Found(machine.name, severity, says, {"rate": round(rate, 4), "ended": ended})


def _arrived(watched: Watched, machine: str, window: timedelta) -> Counter[str]:
    """How many units came into each state within the window."""
    sql = (
        "SELECT to_status, count(*) FROM transition_log WHERE machine = :machine"
        f" AND at >= {watched.ledger.database.sql.instant('since')} AND to_status IS NOT NULL GROUP BY to_status"
    )
    since = instant_text(watched.now - window)
    rows = watched.ledger.read(lambda cursor: cursor.rows(sql, since=since, machine=machine))
    return Counter({str(state): int(count) for state, count in rows})


def stale(watched: Watched, policy: Policy) -> Iterator[Found]:
    """A machine that used to move and does not: for longer than the window, and twice the longest pause of its week."""
    database, now = watched.ledger.database, watched.now
    hours = database.read(lambda cursor: _moved(database, cursor, now), patient=True)
    for machine in _machines(watched, policy):
        moved = sorted(hours.get(machine.name, ()))
        if len(moved) < _ACTIVE_HOURS:
            continue
        longest = max(later - earlier for earlier, later in pairwise(moved))
        quiet = now - moved[-1]
        if quiet > max(policy.window, 2 * longest):
            last = instant_text(moved[-1])
            says = f"no {machine.name} unit has moved since {last}; it never paused for more than {_whole(longest)}"
            yield Found(machine.name, policy.severity, says, {"since": last})


def _moved(database: Database, cursor: Cursor, now: datetime) -> Mapping[str, set[datetime]]:
    """In which hours of the last week something moved, by machine; in the last two hours also when."""
    found: dict[str, set[datetime]] = {}
    for one in activity(database, cursor, Window(now - _HISTORY)):
        found.setdefault(one.machine, set()).add(one.hour)
    at, hour = database.sql.instant("since"), "substr(CAST(at AS TEXT), 1, 13)"
    sql = f"SELECT machine, max(at) FROM transition_log WHERE at >= {at} GROUP BY machine, {hour}"
    for name, moment in cursor.rows(sql, since=instant_text(now - _LATELY)):
        found.setdefault(str(name), set()).add(instant(moment))
    return found


def allowed(state: State, settings: KernelSettings, policy: str = "stuck_units") -> timedelta | None:
    """How long a unit may stay in a state without moving; None: as long as it likes.

    As the policy's configured window has it, else as the state says, else by what it means.
    """
    usual = state.allowed or _DWELL.get(state.meaning)
    given = settings.alerts.policies.get(policy)
    return usual if usual is None or given is None or given.window is None else given.window


def stuck(watched: Watched, policy: Policy) -> Iterator[Found]:
    """Units that have stayed in a state, without moving, for longer than it allows."""
    database = watched.ledger.database
    for machine in _machines(watched, policy):
        if not machine.driven:
            continue
        for state in machine.status:
            longest = allowed(state, watched.settings, policy.name)
            if longest is None or str(state) in machine.dead:
                continue
            # What waits for a moment that it has named is not stuck, and what is parked is told by another policy.
            sql = (
                f"SELECT count(*), min(unit_id) FROM {machine.table} WHERE status = :state AND parked_at IS NULL"
                f" AND changed_at < {database.sql.instant('before')}"
                f" AND ({machine.due} IS NULL OR {machine.due} < {database.sql.instant('before')})"
            )
            before = instant_text(watched.now - longest)
            count, example = _one(watched, sql, state=str(state), before=before)
            severity = policy.severity_of(int(count))
            if severity is not None:
                are = "units have" if count != 1 else "unit has"
                says = f"{count:,} {machine.name} {are} been {state} for more than {span_text(longest)}"
                yield Found(
                    f"{machine.name}/{state}", severity, says, {"count": int(count)}, f"{machine.name}:{example}"
                )


def starving(watched: Watched, policy: Policy) -> Iterator[Found]:
    """Gates whose budget will not do for what is due within a day, as the forecast has it."""
    from penstock.operations.forecast import starving as starving_gates

    for gate, at, says in starving_gates(watched.program, watched.ledger, watched.now):
        yield Found(gate, policy.severity, says, {"at": instant_text(at)})


def doctor(watched: Watched, policy: Policy) -> Iterator[Found]:
    """What the doctor finds wrong with the ledger; what other policies tell is left out.

    It looks at what changed since its last clean look, and once a week at everything.
    """
    from penstock.ledger.care import look
    from penstock.ledger.care.doctor import examine

    database, machines = watched.ledger.database, watched.ledger.machines
    views = watched.program.app.data.views
    found, _ = look.look(
        database,
        machines,
        lambda scope: examine(database, machines, views=views, scope=scope),
        since_last=True,
        whole_every=look.WHOLE_EVERY,
    )
    for one in found:
        if one.check not in _TOLD_ELSEWHERE:
            severity = "critical" if one.severity == "error" else policy.severity
            yield Found(f"{one.check}:{one.subject}"[:200], severity, one.message, {"check": one.check})


_TOLD_ELSEWHERE = frozenset({"gates", "disk", "settings", "snapshots", "connections"})


def _whole(span: timedelta) -> str:
    """A span in whole minutes."""
    return span_text(timedelta(minutes=max(1, round(span.total_seconds() / 60))))


def _one(watched: Watched, sql: str, **given: str) -> tuple[int, str | None]:
    count, example = watched.ledger.database.read(lambda cursor: cursor.rows(sql, **given)[0], patient=True)
    return int(count), None if example is None else str(example)


def _document(value: object) -> Mapping[str, object]:
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, Mapping) else {}


CONDITIONS: dict[str, Condition] = {
    "dead_letters": dead,
    "parked": parked,
    "gates": gates,
    "throttles": throttles,
    "schedules": schedules,
    "success_rate": success_rate,
    "stale_flow": stale,
    "stuck": stuck,
    "quota": starving,
    "doctor": doctor,
}
"""Kinds of policies that every program knows."""
