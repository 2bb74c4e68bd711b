"""The program `penstock.examples.demonstration:app`: several lifecycles in one App, over one ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime

from penstock.app.app import App
from penstock.connectors.http.client import Http
from penstock.examples import invoices
from penstock.lifecycles import harvest, reports
from penstock.lifecycles.harvest.program import make_flows as harvest_flows
from penstock.lifecycles.partitions import google_ads
from penstock.lifecycles.partitions.flow import Extractions
from penstock.lifecycles.partitions.judgement import Validators
from penstock.lifecycles.partitions.settings import settings_of
from penstock.lifecycles.reports.job import LIKE, Window, columns_of, datasets
from penstock.lifecycles.reports.machine import Aggregation, Report
from penstock.lifecycles.reports.program import make_flow
from penstock.lifecycles.reports.settings import read_accounts, read_settings
from penstock.model.clock import Clock, SystemClock
from penstock.model.machine import Actor
from penstock.model.outcome import Birth
from penstock.model.unit import replace
from penstock.raw.sink import RawSink
from penstock.settings import setting as kind
from penstock.settings.config import Config
from penstock.settings.setting import Setting
from penstock.worker.flow import AnyFlow, Io
from penstock.worker.schedule import Job, JobResult, Schedule

APP = "penstock.examples.demonstration:app"
SAMPLE = "sample-report-datasets"
EVERY_DAYS = 20

_OTHERS = (reports.app, google_ads.app, harvest.app)
_INVOICE_API = Setting("invoices.api_url", kind.text, "http://127.0.0.1:8099", "Where the accounting API is served.")


def make_flows(config: Config, clock: Clock) -> list[AnyFlow]:
    """The flow of each lifecycle."""
    wanted = settings_of(config)
    validators = Validators(RawSink(wanted.raw_url), wanted)
    return [
        invoices.Invoices(Http(config["invoices.api_url"], clock)),
        make_flow(config, clock),
        Extractions(google_ads.make_extractors(config, clock), validators),
        *harvest_flows(config, clock),
    ]


def sample_datasets(config: Config) -> Job:
    """The job `sample-report-datasets`: what `update-report-datasets` makes, but of few days and hours.

    Its settings are the first day, and the accounts that have hourly data too. All days of three accounts would be some
    thousands of reports, and a demonstration of several minutes.
    """
    accounts, settings = read_accounts(config), read_settings(config)

    def wanted(day: date, hourly: Sequence[str]) -> Iterator[Report]:
        hour = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
        for account in accounts.values():
            spans = [(Aggregation.DAILY, Window(day, day))]
            if account.name in hourly:
                spans.append((Aggregation.HOURLY, Window(hour, hour)))
            for aggregation, within in spans:
                (own,) = columns_of([account], aggregation)
                for columns in datasets(within, aggregation, account.time_zone, settings):
                    yield replace(LIKE, time_zone=account.time_zone, **own, **columns)

    async def run(schedule: Schedule, io: Io) -> JobResult:
        given = schedule.settings or {}
        day = io.now().date()
        if (day - date.fromisoformat(given["since"])).days % EVERY_DAYS:
            return JobResult("not a day of the sample")
        births = [
            Birth(unit, f"{day} is in the sample", if_absent=True, actor=Actor.SCHEDULER)
            for unit in wanted(day, given["hourly"])
        ]
        return JobResult(f"{len(births)} datasets of {day}", others=births)

    return run


def _settings() -> list[Setting]:
    """All settings of all; some are shared."""
    return list({setting.key: setting for app in _OTHERS for setting in app.settings}.values())


app = App(
    machines=[invoices.machine, *(machine for app in _OTHERS for machine in app.machines)],
    data_tables=[table for app in _OTHERS for table in app.data_tables],
    views={name: view for app in _OTHERS for name, view in app.views.items()},
    staged=[staged for app in _OTHERS for staged in app.staged],
    configured=lambda config: make_flows(config, SystemClock()),
    settings=[_INVOICE_API, *_settings()],
    configured_jobs={
        **{name: make for app in _OTHERS for name, make in app.configured_jobs.items()},
        SAMPLE: sample_datasets,
    },
    subscribers=harvest.app.subscribers,
    configured_subscribers=harvest.app.configured_subscribers,
    configured_schedules=harvest.app.configured_schedules,
    configured_providers=harvest.app.configured_providers,
)
