"""The part of the reports: three Amazon Ads accounts, every offset, and what goes wrong on the way.

Amazon's simulator is told to fail one report, to refuse one link as expired, and to throttle once.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.examples.demonstration.part import Check, Table, Told, World, closings, throttled
from penstock.examples.demonstration.sample import EVERY_DAYS, SAMPLE
from penstock.lifecycles import reports
from penstock.lifecycles.reports import operations
from penstock.lifecycles.reports.decide import offset_name
from penstock.lifecycles.reports.jobs import PRUNE, UPDATE
from penstock.lifecycles.reports.machine import Aggregation
from penstock.lifecycles.reports.settings import DAILY_OFFSETS, HOURLY_OFFSETS
from penstock.model.clock import Clock, instant
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate, Fault, throttle
from penstock.simulators.amazon_data import Performance
from penstock.simulators.amazon_stream import StreamSimulator
from penstock.simulators.server import in_thread

#: Account to profile, country and time zone.
ACCOUNTS = {
    "acme": ("1001", "ES", "Europe/Madrid"),
    "globex": ("1002", "US", "America/Los_Angeles"),
    "initech": ("1003", "JP", "Asia/Tokyo"),
}
STREAMED = "acme"
_DAY, _HOUR = timedelta(days=1), timedelta(hours=1)
_DAYS = 60
_EXPIRED = Fault(403, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
_FAILED = Fate(timedelta(minutes=1), timedelta(minutes=3), "FAILED", "INTERNAL_ERROR")
_QUIET_SECONDS = "900"
_GATES = "amazon_ads/%"


class ReportsPart:
    """Datasets of a few days and hours, each refreshed at its offsets."""

    leaves = ("stream",)

    def __init__(self, clock: Clock) -> None:
        usual = Fate(timedelta(minutes=1), timedelta(minutes=3))
        profiles = {profile for profile, _, _ in ACCOUNTS.values()}
        self._amazon = AmazonAdsSimulator(clock, Performance(rows=8), profiles, fate=usual)
        self._stream: StreamSimulator | None = None

    @contextlib.contextmanager
    def serving(self, folder: Path, start: datetime, clock: Clock) -> Iterator[str]:
        self.now_by(clock)
        self._stream = StreamSimulator(folder / "stream", self._amazon.performance)
        for profile, _, _ in ACCOUNTS.values():  # a consumer that receives nothing is there all the same
            (folder / "stream" / profile).mkdir(parents=True, exist_ok=True)
        secrets = {"amazon-client": self._amazon.client_secret, "amazon-token": min(self._amazon.refresh_tokens)}
        for name, value in secrets.items():
            (folder / "secrets" / name).write_text(value)
        with in_thread(self._amazon) as address:
            yield "\n".join(self._settings(address, start))

    def _settings(self, address: str, start: datetime) -> Iterator[str]:
        yield "[reports]"
        yield f'client_id = "{self._amazon.client_id}"'
        yield 'client_secret = { file = "secrets/amazon-client" }'
        yield 'refresh_token = { file = "secrets/amazon-token" }'
        yield 'stream = "stream"'
        yield f'private_downloads = ["{urlsplit(address).netloc}"]\n'
        for name, (profile, country, time_zone) in ACCOUNTS.items():
            yield f"[reports.accounts.{name}]"
            yield f'profile_id = "{profile}"\ncountry = "{country}"\ntime_zone = "{time_zone}"'
            yield f'api_url = "{address}"\ntoken_url = "{address}/auth/o2/token"\n'
        yield f"# In place of the job that makes the datasets of all days.\n[schedules.{UPDATE}]"
        yield f'job = "{SAMPLE}"\nat = ["12:00"]'
        daily = json.dumps(list(ACCOUNTS))
        yield f'settings = {{ since = "{start:%Y-%m-%d}", daily = {daily}, hourly = ["{STREAMED}"] }}\n'
        yield f'# What is shown at the end stays.\n[schedules.{PRUNE}]\njob = "{PRUNE}"\nevery = "365d"\n'
        yield '[schedules.sweep-stages]\njob = "sweep-stages"\nat = ["11:00"]\n'

    def now_by(self, clock: Clock) -> None:
        self._amazon.clock = clock

    async def happen(self, world: World) -> None:
        """Deltas arrive for the hour of every sampled day, the last of them two days late; things break early on."""
        noon = world.start.replace(hour=12)
        events: list[tuple[datetime, Callable[[], None]]] = [
            (noon + 2 * _DAY, partial(self._amazon.fates.append, _FAILED)),
            (noon + 4 * _DAY, partial(self._amazon.faults["download"].append, _EXPIRED)),
            (noon + 6 * _DAY, partial(self._amazon.faults["create"].append, throttle(_QUIET_SECONDS))),
        ]
        for hour in (noon + days * _DAY for days in range(0, _DAYS + 1, EVERY_DAYS)):
            events.append((hour + _HOUR, partial(self._arrive, hour)))
            events.append((hour + 2 * _DAY, partial(self._arrive, hour, late=True)))
        for moment, event in sorted(events, key=lambda pair: pair[0]):
            await world.until(moment)
            event()

    def _arrive(self, hour: datetime, *, late: bool = False) -> None:
        assert self._stream is not None  # noqa: S101 - it is served
        self._stream.write(ACCOUNTS[STREAMED][0], hour.astimezone(UTC), late=late)

    def told(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        loads = world.rows(
            "SELECT aggregation, serving_offset, count(*), sum(CASE WHEN changed THEN 1 ELSE 0 END), max(loaded_at)"
            " FROM report_load WHERE loaded_at >= {since} AND loaded_at < {until} GROUP BY aggregation, serving_offset",
            since=since,
            until=until,
        )
        for aggregation, offset, count, changed, at in loads:
            text = f"{offset_name(aggregation, int(offset))} served for {count} {aggregation} datasets"
            yield Told(instant(at), f"{text}, {changed} of them changed" if changed else text)
        for unit_id, reason, at in self._failures(world, since, until):
            yield Told(instant(at), f"report:{unit_id}: {reason}")
        yield from closings(world, _GATES, since, until)
        for unit_id, report_id, at in self._expired(world):
            if since <= instant(at) < until:
                yield Told(instant(at), f"report:{unit_id}: the link had expired; report {report_id} loaded by another")

    def _failures(self, world: World, since: datetime, until: datetime) -> list[tuple[str, str, datetime]]:
        return world.rows(
            "SELECT unit_id, reason, at FROM transition_log WHERE machine = 'report' AND from_status = 'fetching'"
            " AND to_status = 'error' AND at >= {since} AND at < {until} ORDER BY at, unit_id",
            since=since,
            until=until,
        )

    def _expired(self, world: World) -> Iterator[tuple[str, str, datetime]]:
        """Reports that were downloaded twice and loaded once: the first link was refused."""
        downloads = Counter(request.path for request in tuple(self._amazon.requests) if request.operation == "download")
        for path, times in downloads.items():
            if times > 1:
                report_id = path.rpartition("/")[2].removesuffix(".json.gz")
                sql = "SELECT unit_id, report_id, loaded_at FROM report_load WHERE report_id = :report_id"
                yield from world.rows(sql, report_id=report_id)

    def checks(self, world: World) -> Iterator[Check]:
        served = world.rows(
            "SELECT aggregation, serving_offset, count(*) FROM report_load GROUP BY aggregation, serving_offset"
        )
        counts = {(aggregation, int(offset)): count for aggregation, offset, count in served}
        for aggregation, offsets in ((Aggregation.DAILY, DAILY_OFFSETS), (Aggregation.HOURLY, HOURLY_OFFSETS)):
            for seconds in (int(offset.total_seconds()) for offset in offsets):
                count = counts.get((aggregation, seconds))
                what = f"{aggregation} datasets refreshed at {offset_name(aggregation, seconds)}"
                yield Check(what, f"{count} times" if count else None)
        recovered = world.rows(
            "SELECT l.unit_id FROM transition_log l JOIN report_dataset_metadata d ON d.unit_id = l.unit_id"
            " WHERE l.machine = 'report' AND l.from_status = 'fetching' AND l.to_status = 'error'"
            " AND d.status = 'completed' ORDER BY l.at"
        )
        yield Check("a failed report, and another in its place", _first(recovered))
        yield Check("an expired link, and the same report through another", _first(list(self._expired(world))))
        yield Check("a throttle by Amazon Ads, waited for", throttled(world, _GATES))

    def tables(self, world: World) -> Iterator[Table]:
        page = operations.cadence(world.ask(reports.lifecycle))
        rows = [
            (f"{one.aggregation} {one.entity_type}", one.offset, f"{one.loads}", f"{one.changed} of {one.compared}")
            for one in page.rows
        ]
        yield Table(
            "Refreshes of reports, by the offset they served", ("datasets", "offset", ">loads", ">changed"), rows
        )

    def next(self, world: World) -> Iterator[str]:
        yield "penstock reports datasets"
        yield "penstock reports cadence"
        ((unit_id,),) = world.rows(
            "SELECT min(unit_id) FROM report_dataset_metadata WHERE aggregation = 'daily' AND account = :account",
            account=STREAMED,
        )
        yield f"penstock reports show {unit_id}"


def _first(rows: Sequence[tuple[Any, ...]]) -> str | None:
    return str(rows[0][0]) if rows else None
