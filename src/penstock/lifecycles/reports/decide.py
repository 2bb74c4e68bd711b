"""The seed's `getNextAction`: create, process or none, and why. Pure, like all that is here.

An offset is *due* once its moment has come, and *served* by any report that was created at that moment or later, so
that several missed offsets make one report. `serving_offset` remembers the one that a report is for until it is loaded:
a failure leaves it set, and it is tried again until one of its limits is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from penstock.lifecycles import ladder as ladders
from penstock.lifecycles.ladder import Ladder
from penstock.lifecycles.reports.machine import Aggregation, Report, S
from penstock.model.clock import parse_instant
from penstock.model.outcome import Act, Decision, Look, Wait

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
DAILY_OFFSETS = tuple(n * DAY for n in (1, 3, 5, 7, 14, 30, 60))
HOURLY_OFFSETS = tuple(n * HOUR for n in (24, 72, 312))
BEYOND = 2 * DAY
"""How long a dataset is kept after its last offset (P6)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How often each kind of failure is borne, for one offset, before the dataset rests in `error`."""

    create: int = 3
    provider: int = 3
    pending: int = 3
    parse: int = 3
    link: int = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """What the decision knows besides the dataset: the offsets, the patience, and whether an account is paused."""

    accounts: Mapping[str, bool]
    daily: Sequence[timedelta] = DAILY_OFFSETS
    hourly: Sequence[timedelta] = HOURLY_OFFSETS
    poll: timedelta = timedelta(minutes=5)
    cancel_after: timedelta = 6 * HOUR
    give_up_after: timedelta = 24 * HOUR
    pause: timedelta = HOUR
    limits: Limits = field(default_factory=Limits)

    def offsets(self, aggregation: Aggregation) -> Sequence[timedelta]:
        """The offsets of one kind of dataset, in order; none where it is switched off."""
        return self.daily if aggregation is Aggregation.DAILY else self.hourly

    def retention(self, aggregation: Aggregation) -> timedelta | None:
        """How long a dataset is kept after its beginning; None, for ever, while its aggregation is switched off."""
        offsets = self.offsets(aggregation)
        return offsets[-1] + BEYOND if offsets else None


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation: how the report stands at the provider, or whether an account has daily work waiting."""

    state: Literal["pending", "ready", "failed", "busy", "free"]
    says: str = ""
    url: str | None = None


def decide(report: Report, now: datetime, settings: Settings, seen: Seen | None) -> Decision:
    """What the dataset needs now."""
    paused = settings.accounts.get(report.account)
    if paused is None:
        return Act("disown", f"account {report.account!r} is not configured", counts_attempt=False)
    if paused:
        return Wait(now + settings.pause, f"account {report.account!r} is paused in the configuration")
    if report.report_id is None:
        return _create_or_wait(report, now, settings, seen)
    if seen is None:
        return Look(f"is report {report.report_id} ready?" if report.status is S.FETCHING else "a fresh link is needed")
    return _process_or_wait(report, now, settings, seen)


def _create_or_wait(report: Report, now: datetime, settings: Settings, seen: Seen | None) -> Decision:
    if not settings.offsets(report.aggregation):
        why = f"{report.aggregation} is switched off: reports.{report.aggregation}_offsets is empty"
        return Wait(next_attention(report, now, settings), why)
    offset = wanted_offset(report, now, settings)
    if offset is None:
        return Wait(next_offset_at(report, now, settings), _resting(report, now, settings))
    if report.backfill and seen is None:
        return Look("a backfill goes behind the daily work of its account", asks=False)
    if report.backfill and seen is not None and seen.state == "busy":
        return Wait(now + settings.poll, "a backfill waits while its account has daily work that is due")
    again = report.serving_offset is not None and failures(report) > 0
    return Act("create", f"{named(report, offset)} is {'tried again' if again else 'due and unserved'}")


def _process_or_wait(report: Report, now: datetime, settings: Settings, seen: Seen) -> Decision:
    if seen.state == "ready":
        return Act("process", f"report {report.report_id} is ready")
    if seen.state == "failed":
        return Act("fail", f"the provider says of report {report.report_id}: {seen.says}", counts_attempt=False)
    age = now - (report.last_report_created_at or now)
    if age >= settings.give_up_after:
        return Act("give_up", f"report {report.report_id} is not ready after {told(age)}", counts_attempt=False)
    if age >= settings.cancel_after and report.cancel_refused_at is None and report.status is S.FETCHING:
        return Act("cancel", f"report {report.report_id} is pending for {told(age)}")
    return Wait(now + settings.poll, f"report {report.report_id} is not ready: {seen.says}")


def ladder(report: Report, settings: Settings) -> Ladder:
    """The offsets of a dataset."""
    return Ladder(report.timestamp, settings.offsets(report.aggregation))


def _serving(report: Report) -> timedelta | None:
    return None if report.serving_offset is None else timedelta(seconds=report.serving_offset)


def wanted_offset(report: Report, now: datetime, settings: Settings) -> timedelta | None:
    """The offset that a report created now would serve; None when none is wanted (P1, P2)."""
    given_up = exhausted(report, settings.limits)
    return ladder(report, settings).wanted(now, report.last_report_created_at, _serving(report), given_up=given_up)


def last_due_offset(report: Report, now: datetime, settings: Settings) -> timedelta | None:
    """The latest offset whose moment has come."""
    return ladder(report, settings).due(now)


def next_offset_at(report: Report, now: datetime, settings: Settings) -> datetime | None:
    """The moment of the next offset; None after the last."""
    return ladder(report, settings).next_at(now)


def next_attention(report: Report, now: datetime, settings: Settings) -> datetime | None:
    """When a dataset without a report wants attention: now where an offset is wanted, else at the next one.

    Where its aggregation is switched off, that is asked again a day later.
    """
    if not settings.offsets(report.aggregation):
        return now + DAY
    given_up = exhausted(report, settings.limits)
    return ladder(report, settings).attention(now, report.last_report_created_at, _serving(report), given_up=given_up)


def is_served(report: Report) -> bool:
    """Whether the report of a dataset was created late enough for the offset that it is for (P3)."""
    if report.serving_offset is None or report.last_report_created_at is None:
        return True
    return report.last_report_created_at >= report.timestamp + timedelta(seconds=report.serving_offset)


def may_adopt(report: Report, report_id: str, created_at: datetime, *, older: bool) -> bool:
    """Whether a report that the provider has already may stand for the one that is wanted.

    None is loaded twice, none takes the place of a newer one, and one that is older than the offset is taken once for
    that offset.
    """
    if report_id == report.last_processed_report_id or (older and report.duplicates > 0):
        return False
    # The run of a report is named by the moment at which the report was created.
    return report.raw_run_id is None or created_at > parse_instant(report.raw_run_id)


def failures(report: Report) -> int:
    """How often the offset that is being served has failed, in whichever way."""
    return (
        report.create_failures
        + report.provider_failures
        + report.pending_failures
        + report.parse_failures
        + report.link_expiries
    )


def exhausted(report: Report, limits: Limits) -> bool:
    """Whether one of the limits is reached."""
    return (
        report.create_failures >= limits.create
        or report.provider_failures >= limits.provider
        or report.pending_failures >= limits.pending
        or report.parse_failures >= limits.parse
        or report.link_expiries >= limits.link
    )


def named(report: Report, offset: timedelta) -> str:
    """An offset as the seed writes it: `T+3d`, `T+312h`."""
    return offset_name(report.aggregation, int(offset.total_seconds()))


def offset_name(aggregation: str, seconds: int) -> str:
    """The same of an offset in seconds: days for daily datasets, hours for hourly ones."""
    return ladders.offset_name(seconds, days=aggregation == Aggregation.DAILY)


def told(span: timedelta) -> str:
    """A span for people, in hours and minutes."""
    minutes = int(span.total_seconds()) // 60
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def _resting(report: Report, now: datetime, settings: Settings) -> str:
    coming = next_offset_at(report, now, settings)
    until = "there is no later offset" if coming is None else f"the next is {named(report, coming - report.timestamp)}"
    if report.serving_offset is not None:
        return f"{offset_name(report.aggregation, report.serving_offset)} was given up: {report.error}; {until}"
    if last_due_offset(report, now, settings) is None:
        return f"no offset is due yet; {until}"
    return f"every offset that is due is served; {until}"
