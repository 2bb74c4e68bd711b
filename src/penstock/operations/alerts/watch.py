"""The watch: asks every policy's condition of the ledger, and fires or resolves what has changed.

A condition must stay true for as long as its policy says before its alert fires, and be over for as long before it is
resolved: what comes and goes is told once. An alert that a person has resolved by hand fires again only when its
condition was over in between, or has become worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

from penstock.model.clock import instant, instant_text
from penstock.model.errors import LedgerUnavailable, UsageError
from penstock.operations.alerts import book
from penstock.operations.alerts.machine import A, machine
from penstock.operations.alerts.policy import (
    EVENT,
    Condition,
    Found,
    Policy,
    Watched,
    conditions_of,
    policies_of,
    worse,
)

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

log = structlog.get_logger()
_MOST = 200
"""A policy fires at most so many alerts at a time: more are one more."""


@dataclass(slots=True)
class Memory:
    """What was seen of a subject before."""

    since: datetime
    over_since: datetime | None
    seen_at: datetime


@dataclass(slots=True)
class Watching:
    """What a look came to."""

    fired: int = 0
    resolved: int = 0
    told: int = 0
    failed: int = 0

    def __str__(self) -> str:
        parts = (
            (self.fired, "fired"),
            (self.resolved, "resolved"),
            (self.told, "told late"),
            (self.failed, "not asked"),
        )
        return ", ".join(f"{count:,} {what}" for count, what in parts if count) or "nothing changed"


def watch(program: Any, ledger: Ledger, now: datetime, who: str, kinds: Iterable[str] | None = None) -> Watching:
    """One look at every policy whose time has come; `kinds` limits it to policies of these kinds."""
    done = Watching(told=book.catch_up(ledger, now, who))
    conditions, wanted = conditions_of(program), None if kinds is None else set(kinds)
    for policy in policies_of(program).values():
        if wanted is not None and policy.kind not in wanted:
            continue
        memory = recall(ledger, policy.name)
        if policy.kind == EVENT:
            done.resolved += _quiet(ledger, policy, memory, now, who)
            continue
        last = memory.pop("", None)
        if last is not None and now < last.seen_at + policy.every:
            continue
        condition, settings = conditions[policy.kind]
        found = _asked(condition, Watched(ledger, now, program, settings), policy)
        if found is None:
            done.failed += 1
            continue
        if policy.every:
            remember(ledger, policy.name, "", now)
        _compare(ledger, policy, found, memory, now, who, done)
    return done


def _asked(condition: Condition, watched: Watched, policy: Policy) -> dict[str, Found] | None:
    """What is true now, by subject; None where it could not be asked, which ends no other policy's look."""
    try:
        found = {one.subject: one for one in condition(watched, policy) if policy.wants(one.subject)}
    except LedgerUnavailable:
        raise
    except Exception as error:  # noqa: BLE001 - a lifecycle's own code
        log.warning("alert.unasked", policy=policy.name, error=repr(error))
        return None
    if len(found) > _MOST:
        kept = dict(sorted(found.items())[:_MOST])
        worst = max((one.severity for one in found.values()), key=lambda one: one == "critical")
        kept["others"] = Found("others", worst, f"{len(found) - _MOST:,} more than are named")
        return kept
    return found


def _compare(  # noqa: PLR0917 - all that one look knows
    ledger: Ledger,
    policy: Policy,
    found: Mapping[str, Found],
    memory: dict[str, Memory],
    now: datetime,
    who: str,
    done: Watching,
) -> None:
    live = _live(ledger, policy.name)
    for subject, one in found.items():
        known = memory.get(subject)
        since = known.since if known is not None else now
        if known is None or known.over_since is not None:
            _write(ledger, policy.name, subject, Memory(since, None, now))
        if now - since >= policy.hold and not _settled(ledger, policy, one, since):
            done.fired += book.fire(ledger, policy.name, one, now, who)
    for subject in {*memory, *live} - set(found):
        known = memory.get(subject) or Memory(now, None, now)
        over = known.over_since or now
        if now - over < policy.hold:
            _write(ledger, policy.name, subject, Memory(known.since, over, known.seen_at))
            continue
        forget(ledger, policy.name, subject)
        done.resolved += book.resolve(ledger, policy.name, subject, f"{policy.name}: it is over", who)


def _settled(ledger: Ledger, policy: Policy, one: Found, since: datetime) -> bool:
    """Whether a person has resolved it by hand, and it is still what it was."""
    alert = book.find(ledger, policy.name, one.subject)
    if alert is None or alert.status is not A.RESOLVED or alert.changed_at is None:
        return False
    return alert.changed_at >= since and not worse(one.severity, alert.severity)


def _quiet(ledger: Ledger, policy: Policy, memory: Mapping[str, Memory], now: datetime, who: str) -> int:
    """Resolve what no event has told of for as long as the policy says."""
    ended = 0
    for subject in _live(ledger, policy.name):
        seen = memory.get(subject)
        if seen is not None and now - seen.seen_at < policy.window:
            continue
        if seen is None:
            remember(ledger, policy.name, subject, now)
            continue
        forget(ledger, policy.name, subject)
        ended += book.resolve(ledger, policy.name, subject, "no such event for a while", who)
    return ended


def _live(ledger: Ledger, policy: str) -> set[str]:
    sql = f"SELECT subject FROM {machine.table} WHERE policy = :policy AND status <> '{A.RESOLVED}'"
    return {str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, policy=policy))}


def recall(ledger: Ledger, policy: str) -> dict[str, Memory]:
    """What is remembered of a policy, by subject."""
    sql = "SELECT subject, since, over_since, seen_at FROM alert_memory WHERE policy = :policy"
    rows = ledger.read(lambda cursor: cursor.rows(sql, policy=policy))
    return {str(row[0]): Memory(instant(row[1]), instant(row[2]), instant(row[3])) for row in rows}


def remember(ledger: Ledger, policy: str, subject: str, now: datetime) -> None:
    """It was seen now; since when stays."""
    known = recall(ledger, policy).get(subject)
    _write(ledger, policy, subject, Memory(known.since if known else now, None, now))


def forget(ledger: Ledger, policy: str, subject: str) -> None:
    """It is over: the next time is another."""
    sql = "DELETE FROM alert_memory WHERE policy = :policy AND subject = :subject"
    ledger.database.write(lambda cursor: cursor.run(sql, policy=policy, subject=subject))


def _write(ledger: Ledger, policy: str, subject: str, memory: Memory) -> None:
    database = ledger.database
    at = database.sql.instant
    sql = (
        "INSERT INTO alert_memory (policy, subject, since, over_since, seen_at) VALUES"
        f" (:policy, :subject, {at('since')}, {at('over')}, {at('seen')}) ON CONFLICT (policy, subject)"
        " DO UPDATE SET since = excluded.since, over_since = excluded.over_since, seen_at = excluded.seen_at"
    )
    given = {
        "policy": policy,
        "subject": subject,
        "since": instant_text(memory.since),
        "over": None if memory.over_since is None else instant_text(memory.over_since),
        "seen": instant_text(memory.seen_at),
    }
    database.write(lambda cursor: cursor.run(sql, **given))


def firing_critical(ledger: Ledger) -> int:
    """How many critical alerts fire that nobody has taken on."""
    sql = f"SELECT count(*) FROM {machine.table} WHERE status = '{A.FIRING}' AND severity = 'critical'"
    return int(ledger.read(lambda cursor: cursor.rows(sql))[0][0])


def check(program: Any) -> None:
    """Raise UsageError for policies that cannot be."""
    for policy in policies_of(program).values():
        if policy.kind == EVENT and not policy.events and policy.name not in _OPEN:
            raise UsageError(f"alerts.policies.{policy.name}: name the events that fire it")


_OPEN = ("critical_event", "test")
