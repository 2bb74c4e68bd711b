"""What becomes of a dataset when something fails: which counter rises, what a person reads, and when it is tried again.

A failed call is tried again within minutes; when that does not help it is charged to the offset that is being served.
Charged failures are tried again after a quarter of an hour, an hour, four hours; at the limit the dataset rests in
`error` until the next offset, and an alert says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock.ledger.schema.columns import readable
from penstock.lifecycles.reports.decide import exhausted, next_attention, offset_name, told
from penstock.lifecycles.reports.machine import Report, S
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.model.clock import Rng
from penstock.model.outcome import Event, Outcome
from penstock.model.retry import RetryPolicy
from penstock.model.unit import replace

CALLS = RetryPolicy(max_retries=5, base=timedelta(seconds=2), cap=timedelta(minutes=10), multiplier=4)
"""Within one try: after 2, 8, 32, 128 and 512 seconds."""
CHARGED = RetryPolicy(base=timedelta(minutes=15), cap=timedelta(hours=6), multiplier=4)
DUPLICATES = RetryPolicy(base=timedelta(minutes=5), cap=timedelta(hours=6))
"""While the provider names old reports instead of making one."""
_UNDER_WAY = (S.FETCHING, S.PARSING)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a failure is judged by: when, by which settings, and the dice for the delay."""

    now: datetime
    rng: Rng
    settings: ReportSettings


def again(report: Report, error: Exception, moment: Moment, least: timedelta = timedelta()) -> Outcome[Report]:
    """The same call a little later; nothing is charged yet."""
    delay = max(least, CALLS.delay(report.attempts, moment.rng))
    after = replace(report, attempts=report.attempts + 1, due_at=moment.now + delay)
    return Outcome(report, after, readable(f"{type(error).__name__}: {error}"))


def of(report: Report, counter: str, why: str, moment: Moment, *, at_once: bool = False) -> Outcome[Report]:
    """One failure charged to the offset that is being served; at the limit the dataset rests in `error`."""
    count = getattr(report, counter) + 1
    charged: dict[str, Any] = {counter: count}
    after = replace(report, report_id=None, create_requested_at=None, cancel_refused_at=None, attempts=0, **charged)
    after = replace(after, error=readable(why))
    given_up = exhausted(after, moment.settings)
    if given_up or report.status in _UNDER_WAY:
        after = replace(after, status=S.ERROR)
    due = next_attention(after, moment.now, moment.settings)
    if not given_up and not at_once:
        due = moment.now + CHARGED.delay(count - 1, moment.rng)
    after = replace(after, due_at=due)
    return Outcome(report, after, readable(why), events=[_given_up(report, why)] if given_up else ())


def pending(report: Report, moment: Moment, said: str, *, cancelled: bool = False) -> Outcome[Report]:
    """The provider took too long; it has been waited for long enough, so another report is created at once."""
    age = told(moment.now - (report.last_report_created_at or moment.now))
    how = "and was cancelled" if cancelled else "and could not be cancelled"
    why = f"report {report.report_id} was pending for {age} {how}: {said}"
    return of(report, "pending_failures", why, moment, at_once=True)


def duplicate(report: Report, named: str, moment: Moment) -> Outcome[Report]:
    """The provider names a report that may not be adopted (again): ask again, each time later."""
    due = moment.now + DUPLICATES.delay(report.duplicates, moment.rng)
    after = replace(report, create_requested_at=None, attempts=0, duplicates=report.duplicates + 1, due_at=due)
    return Outcome(report, after, f"the provider names report {named} again instead of making one")


def stream_gone(report: Report, error: Exception, moment: Moment) -> Outcome[Report]:
    """Its hours have no source: it fails, nothing is charged, and it is tried again, each time later."""
    why = readable(f"hourly data has no source: {error}")
    after = replace(
        report,
        status=S.ERROR,
        report_id=None,
        create_requested_at=None,
        cancel_refused_at=None,
        error=why,
        attempts=report.attempts + 1,
        due_at=moment.now + CHARGED.delay(report.attempts, moment.rng),
    )
    key = f"report.stream_gone:{report.account}:{moment.now:%Y-%m-%d}"  # one a day
    alert = Event(key, "report.stream_gone", {"account": report.account, "reason": why}, "warning")
    return Outcome(report, after, why, events=[alert])


def disowned(report: Report) -> Outcome[Report]:
    """Its account is not configured: it rests until that changes."""
    why = (
        f"account {report.account!r} is not configured; add [reports.accounts.{report.account}] to the configuration,"
        " or leave the dataset to be pruned"
    )
    after = replace(report, status=S.ERROR, report_id=None, create_requested_at=None, error=readable(why), due_at=None)
    alert = Event(f"report.account_unknown:{report.account}", "report.account_unknown", {"reason": why}, "warning")
    return Outcome(report, after, readable(why), events=[alert])


def _given_up(report: Report, why: str) -> Event:
    served = offset_name(report.aggregation, report.serving_offset or 0)
    return Event(
        f"report.given_up:{report.unit_id}:{served}:{report.version}",
        "report.given_up",
        {"unit": f"report:{report.unit_id}", "offset": served, "reason": why},
        "warning",
    )
