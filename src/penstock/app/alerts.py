"""Alerts put together for a program: the watch, the heartbeat, who listens to events, and the sinks that tell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from penstock.app.lifecycle import job
from penstock.operations.alerts.policy import SLOW
from penstock.operations.alerts.sinks import LOG, Named, sinks_of, takes
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.connectors.sinks.notice import Sink
    from penstock.ledger.outbox import EventRow
    from penstock.worker.flow import Io
    from penstock.worker.job import JobResult
    from penstock.worker.outbox import Subscriber
    from penstock.worker.schedule_unit import Schedule

WATCH, DOCTOR, HEARTBEAT = "watch-alerts", "watch-doctor", "heartbeat"
_EVERY = timedelta(minutes=1)


@job(WATCH, "Fires alerts whose condition has become true, and resolves those that are over.")
async def watch_alerts(settings: KernelSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    """One look over all workers: schedules tick once."""
    from penstock.operations.alerts.policy import EVENT, conditions_of
    from penstock.operations.alerts.watch import watch
    from penstock.worker.job import JobResult

    kinds = [kind for kind in (EVENT, *conditions_of(ports.program)) if kind not in SLOW]
    who, now = f"schedule:{schedule.name}", io.now()
    return JobResult(str(await io.ledger(lambda ledger: watch(ports.program, ledger, now, who, kinds))))


@job(DOCTOR, "Has the doctor look at the ledger, and fires an alert for each finding.")
async def watch_doctor(settings: KernelSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    """A large ledger takes minutes."""
    from penstock.operations.alerts.watch import watch
    from penstock.worker.job import JobResult

    who, now = f"schedule:{schedule.name}", io.now()
    return JobResult(str(await io.ledger(lambda ledger: watch(ports.program, ledger, now, who, SLOW))))


@job(HEARTBEAT, "Calls an outside address while all is well.")
async def heartbeat(settings: KernelSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001
    """A worker runs this, the ledger answers, and no critical alert fires: whoever misses the call knows more."""
    from penstock.connectors.sinks.posting import post
    from penstock.operations.alerts.watch import firing_critical
    from penstock.worker.job import JobResult

    if settings.alerts.heartbeat_url is None:
        return JobResult("no address is configured")
    firing = await io.ledger(firing_critical)
    if firing:
        return JobResult(f"not called: {firing:,} critical alert{'s fire' if firing != 1 else ' fires'}")
    io.check()
    await post(settings.alerts.heartbeat_url.reveal(), ports.clock, "the heartbeat's address", method="GET")
    return JobResult("called: all is well")


JOBS = (watch_alerts, watch_doctor, heartbeat)


def schedules(settings: KernelSettings) -> Sequence[Schedule]:
    """The watch, the doctor's, and the heartbeat where an address is configured."""
    from penstock.settings.scalars import span_text
    from penstock.worker.schedule_unit import Schedule

    made = [(WATCH, span_text(_EVERY), None), (DOCTOR, "6h", "10m")]
    if settings.alerts.heartbeat_url is not None:
        made.append((HEARTBEAT, span_text(settings.alerts.heartbeat_every), None))
    return [
        Schedule(name=name, job=name, every=every, jitter=jitter, settings_version="usual")
        for name, every, jitter in made
    ]


def subscribers(settings: KernelSettings, ports: Ports) -> Sequence[Subscriber]:
    """Who listens to events to fire alerts, and the sinks. Raises UsageError for policies that cannot be."""
    from penstock.operations.alerts.book import KINDS
    from penstock.operations.alerts.heed import subscribers_of
    from penstock.operations.alerts.watch import check
    from penstock.worker.outbox import Subscriber

    check(ports.program)
    told = [
        Subscriber(one.name, KINDS, with_io=_telling(one, settings, ports), wants=_wanting(one))
        for one in sinks_of(settings.alerts)
    ]
    return [*subscribers_of(ports.program), *told]


def _wanting(named: Named) -> Callable[[EventRow], bool]:
    """Which alerts a sink wants to be told of."""
    return lambda event: takes(named, *(str(event.payload.get(name)) for name in ("policy", "subject", "severity")))


def _telling(named: Named, settings: KernelSettings, ports: Ports) -> Callable[[EventRow, Io], Awaitable[None]]:
    """Hand events to a sink."""

    async def tell(event: EventRow, io: Io) -> None:
        from penstock.connectors.sinks.notice import notice_of

        notice = notice_of(event, source=settings.alerts.source, runbook=settings.alerts.runbook)
        if named.kind == "email":
            from penstock.connectors.sinks.mail import send

            await io.run(send, notice, named.settings)
        else:
            await _sink(named, ports).tell(notice)

    return tell


def _sink(named: Named, ports: Ports) -> Sink:
    if named.kind == LOG:
        from penstock.connectors.sinks.log import Log

        return Log()
    if named.kind == "slack":
        from penstock.connectors.sinks.slack import Slack

        return Slack(named.settings, ports.clock)
    if named.kind == "pagerduty":
        from penstock.connectors.sinks.pagerduty import PagerDuty

        return PagerDuty(named.settings, ports.clock)
    from penstock.connectors.sinks.webhook import Webhook

    return Webhook(named.settings, ports.clock)
