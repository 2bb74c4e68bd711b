"""What a dataset needs next: a report, its processing, or nothing yet; and why. Pure, like all that is here.

An offset is *due* once its moment has come, and *served* by any report that was created at that moment or later, so
that several missed offsets make one report. `serving_offset` remembers the one that a report is for until it is loaded:
a failure leaves it set, and it is tried again until one of its limits is reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from penstock.lifecycles import ladder as ladders
from penstock.lifecycles.ladder import Ladder
from penstock.lifecycles.reports.machine import Aggregation, Report, S
from penstock.lifecycles.reports.settings import DAY, ReportSettings, gate_of, switched_off
from penstock.model.clock import parse_instant
from penstock.model.outcome import Act, Decision, Look, Wait

PAUSE = timedelta(hours=1)
"""How often a paused account is looked at again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation: how the report stands at the provider, or whether an account has daily work waiting."""

    state: Literal["pending", "ready", "failed", "busy", "free"]
    says: str = ""
    url: str | None = None


def gate(report: Report, settings: ReportSettings) -> str:  # noqa: ARG001 - one shape
    """The gate of a dataset's next step."""
    return gate_of(report.account, report.aggregation)


def decide(report: Report, now: datetime, settings: ReportSettings, seen: Seen | None) -> Decision:
    """What the dataset needs now."""
    account = settings.accounts.get(report.account)
    if account is None:
        return Act("disown", f"account {report.account!r} is not configured", counts_attempt=False)
    if account.paused:
        return Wait(now + PAUSE, f"account {report.account!r} is paused in the configuration")
    if report.report_id is None:
        return _create_or_wait(report, now, settings, seen)
    if seen is None:
        return Look(f"is report {report.report_id} ready?" if report.status is S.FETCHING else "a fresh link is needed")
    return _process_or_wait(report, now, settings, seen)


def _create_or_wait(report: Report, now: datetime, settings: ReportSettings, seen: Seen | None) -> Decision:
    if not settings.offsets(report.aggregation):
        return Wait(next_attention(report, now, settings), switched_off(report.aggregation))
    offset = wanted_offset(report, now, settings)
    if offset is None:
        return Wait(next_offset_at(report, now, settings), _resting(report, now, settings))
    if report.backfill and seen is None:
        return Look("a backfill comes after its account's daily work", asks=False)
    if report.backfill and seen is not None and seen.state == "busy":
        return Wait(now + settings.poll, "a backfill waits while its account has daily work that is due")
    again = report.serving_offset is not None and failures(report) > 0
    return Act("create", f"{named(report, offset)} is {'tried again' if again else 'due and unserved'}")


def _process_or_wait(report: Report, now: datetime, settings: ReportSettings, seen: Seen) -> Decision:
    if seen.state == "ready":
        return Act("process", f"report {report.report_id} is ready")
    if seen.state == "failed":
        return Act("fail", f"the provider says of report {report.report_id}: {seen.says}", counts_attempt=False)
    age = now - (report.last_report_created_at or now)
    if age >= settings.give_up_after:
        return Act("give_up", f"report {report.report_id} is not ready after {told(age)}", counts_attempt=False)
    if age >= settings.cancel_after and report.cancel_refused_at is None and report.status is S.FETCHING:
        return Act("cancel", f"report {report.report_id} has been pending for {told(age)}")
    return Wait(now + settings.poll, f"report {report.report_id} is not ready: {seen.says}")


def ladder(report: Report, settings: ReportSettings) -> Ladder:
    """The offsets of a dataset."""
    return Ladder(report.timestamp, settings.offsets(report.aggregation))


def _serving(report: Report) -> timedelta | None:
    return None if report.serving_offset is None else timedelta(seconds=report.serving_offset)


def wanted_offset(report: Report, now: datetime, settings: ReportSettings) -> timedelta | None:
    """The offset that a report created now would serve; None when none is wanted (P1, P2)."""
    given_up = exhausted(report, settings)
    return ladder(report, settings).wanted(now, report.last_report_created_at, _serving(report), given_up=given_up)


def last_due_offset(report: Report, now: datetime, settings: ReportSettings) -> timedelta | None:
    """The latest offset whose moment has come."""
    return ladder(report, settings).due(now)


def next_offset_at(report: Report, now: datetime, settings: ReportSettings) -> datetime | None:
    """The moment of the next offset; None after the last."""
    return ladder(report, settings).next_at(now)


def next_attention(report: Report, now: datetime, settings: ReportSettings) -> datetime | None:
    """When a dataset without a report wants attention: now where an offset is wanted, else at the next one.

    Where its aggregation is switched off, that is asked again a day later.
    """
    if not settings.offsets(report.aggregation):
        return now + DAY
    given_up = exhausted(report, settings)
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


def exhausted(report: Report, settings: ReportSettings) -> bool:
    """Whether one of the limits is reached."""
    return (
        report.create_failures >= settings.create_limit
        or report.provider_failures >= settings.provider_limit
        or report.pending_failures >= settings.pending_limit
        or report.parse_failures >= settings.parse_limit
        or report.link_expiries >= settings.link_limit
    )


def named(report: Report, offset: timedelta) -> str:
    """An offset for people: `T+3d`, `T+312h`."""
    return offset_name(report.aggregation, int(offset.total_seconds()))


def offset_name(aggregation: str, seconds: int) -> str:
    """The same of an offset in seconds: days for daily datasets, hours for hourly ones."""
    return ladders.offset_name(seconds, days=aggregation == Aggregation.DAILY)


def told(span: timedelta) -> str:
    """A span for people, in hours and minutes."""
    minutes = int(span.total_seconds()) // 60
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def _resting(report: Report, now: datetime, settings: ReportSettings) -> str:
    coming = next_offset_at(report, now, settings)
    until = "there is no later offset" if coming is None else f"the next is {named(report, coming - report.timestamp)}"
    if report.serving_offset is not None:
        return f"{offset_name(report.aggregation, report.serving_offset)} was given up: {report.error}; {until}"
    if last_due_offset(report, now, settings) is None:
        return f"no offset is due yet; {until}"
    return f"every offset that is due is served; {until}"
