"""The part of the partitions: two Google Ads customers, one partition each for every day, extracted at its offsets.

Google's simulator is told to answer once with a campaign twice, and once that its quota is spent for eleven hours.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from pathlib import Path

from penstock.examples.demonstration.part import Check, Table, Told, World, closings, throttled
from penstock.lifecycles import partitions
from penstock.lifecycles.ladder import offset_name
from penstock.lifecycles.partitions import operations
from penstock.lifecycles.partitions.jobs import ENUMERATE
from penstock.lifecycles.partitions.settings import OFFSETS
from penstock.model.cadence import local_instant, parse_zone
from penstock.model.clock import Clock, instant, parse_instant
from penstock.raw.paths import PartitionKey
from penstock.simulators.google_ads import GoogleAdsSimulator, quota
from penstock.simulators.google_data import Campaigns
from penstock.simulators.server import in_thread

#: Customer to time zone: the days of the two end nine hours apart.
CUSTOMERS = {"1111111111": "America/Los_Angeles", "2222222222": "Europe/Madrid"}
_DAY = timedelta(days=1)
_QUOTA_SECONDS = 11 * 3600
_GATES = "google_ads/%"
_SHOWN = 4
_GAQL = (
    "SELECT campaign.id, campaign.name, metrics.clicks, metrics.conversions, segments.date FROM campaign"
    " WHERE segments.date = '{date}'"
)
_FIELDS = '{ "campaign.id" = "whole", "metrics.clicks" = "whole", "segments.date" = "date" }'
_ATTEMPTS = "SELECT source, customer_id, query_name, logical_date, run_id, verdict, error, at FROM partition_attempt"


class PartitionsPart:
    """A partition for each customer and day, wanted by the real job."""

    leaves = ()

    def __init__(self, clock: Clock) -> None:
        self._google = GoogleAdsSimulator(clock, Campaigns(time_zones=CUSTOMERS), set(CUSTOMERS))

    @contextlib.contextmanager
    def serving(self, folder: Path, start: datetime, clock: Clock) -> Iterator[str]:  # noqa: ARG002 - one shape
        self.now_by(clock)
        secrets = {"google-client": self._google.client_secret, "google-token": min(self._google.refresh_tokens)}
        for name, value in secrets.items():
            (folder / "secrets" / name).write_text(value)
        with in_thread(self._google) as address:
            yield "\n".join(self._settings(address))

    def _settings(self, address: str) -> Iterator[str]:
        yield "[partitions.google_ads]"
        yield f'client_id = "{self._google.client_id}"'
        yield 'client_secret = { file = "secrets/google-client" }'
        yield 'refresh_token = { file = "secrets/google-token" }'
        yield f'api_url = "{address}"\ntoken_url = "{address}/token"\n'
        yield "[partitions.sources.google_ads]"
        zones = ", ".join(f'"{customer}" = "{zone}"' for customer, zone in CUSTOMERS.items())
        yield f"customers = {json.dumps(list(CUSTOMERS))}\ntime_zones = {{ {zones} }}\ndays = 2\n"
        yield "[partitions.sources.google_ads.queries.campaign_daily]"
        yield f'gaql = "{_GAQL}"'
        yield f'schema_version = "1"\nfields = {_FIELDS}\nunique = ["campaign.id"]\ndate_field = "segments.date"\n'
        yield f'[schedules.{ENUMERATE}]\njob = "{ENUMERATE}"\nat = ["06:00", "12:00"]\n'

    def now_by(self, clock: Clock) -> None:
        self._google.clock = clock

    async def happen(self, world: World) -> None:
        """On day 20 an answer is bad; in the evening an operator has it fetched again. On day 40 a quota is spent."""
        await world.until(world.start + 20 * _DAY)
        self._google.bodies.append(_twice(world.start + 19 * _DAY))
        await world.until(world.start + 20 * _DAY + timedelta(hours=18))
        day = (world.start + 19 * _DAY).date()
        wanted = operations.ReprocessWanted(source="google_ads", first=day - _DAY, last=day, failed=True)
        world.do(partitions.lifecycle, operations.reprocess, wanted, "Google has corrected its answer")
        await world.until(world.start + 40 * _DAY)
        self._google.faults["search_stream"].append(quota(_QUOTA_SECONDS))

    def told(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        for *parts, run_id, verdict, error, at in self._attempts(world):
            if since <= at < until:
                words = f"run {run_id} is rejected: {error}" if verdict == "failed" else f"run {run_id} is {verdict}"
                yield Told(at, f"partition:{_key(*parts)}: {words}")
        yield from closings(world, _GATES, since, until)
        ((count,),) = world.rows("SELECT count(*) FROM safe_partitions WHERE updated_at < {until}", until=until)
        if (until - world.start) % (15 * _DAY) == timedelta():
            yield Told(until, f"{count} partitions are safe to read")

    def _attempts(self, world: World) -> list[tuple[str, str, str, str, str, str, str | None, datetime]]:
        """Every evaluation of the partitions that were rejected once."""
        found = world.rows(
            f"{_ATTEMPTS} a WHERE EXISTS (SELECT 1 FROM partition_attempt b WHERE b.customer_id = a.customer_id"
            " AND b.query_name = a.query_name AND b.logical_date = a.logical_date AND b.verdict = 'failed')"
            " ORDER BY at, run_id"
        )
        return [(*row[:7], instant(row[7])) for row in found]

    def _fetched(self, world: World) -> Iterator[tuple[PartitionKey, datetime, datetime]]:
        """Every partition, when its day was over where its customer is, and when its authoritative run was begun."""
        found = "SELECT source, customer_id, query_name, logical_date, current_run_id FROM safe_partitions"
        for source, customer, query, day, run_id in world.rows(found):
            key = _key(source, customer, query, day)
            ends = local_instant(key.logical_date + _DAY, time(), parse_zone(CUSTOMERS[customer]))
            yield key, ends, parse_instant(run_id)

    def _corrected(self, world: World) -> tuple[PartitionKey, str, str] | None:
        """The partition that was rejected and is good now, with both runs, as the history has them."""
        for source, customer, query, day, current in world.rows(
            "SELECT source, customer_id, query_name, logical_date, current_run_id FROM safe_partitions"
        ):
            key = _key(source, customer, query, day)
            sql = (
                "SELECT data FROM transition_log WHERE machine = 'partition' AND unit_id = :id AND to_status = 'failed'"
            )
            rejected = world.rows(sql, id=str(key))
            for (data,) in rejected:
                earlier = (json.loads(data) if isinstance(data, str) else data)["current_run_id"]
                if earlier != current:
                    return key, earlier, current
        return None

    def checks(self, world: World) -> Iterator[Check]:
        found = self._corrected(world)
        seen = None if found is None else f"{found[0]}: {found[1]} was rejected, {found[2]} is authoritative"
        yield Check("a rejected partition, success after reprocessing with a new current_run_id", seen)
        served = {one.offset: one.loads for one in operations.cadence(world.ask(partitions.lifecycle)).rows}
        for name in (offset_name(int(offset.total_seconds())) for offset in OFFSETS):
            yield Check(f"partitions extracted at {name}", f"{served[name]} times" if name in served else None)
        early = [str(key) for key, ends, fetched in self._fetched(world) if fetched < ends]
        yield Check("no partition extracted before its day was over", None if early else "in either time zone")
        yield Check("a quota of Google Ads spent for hours, waited for", throttled(world, _GATES))
        ((open_,),) = world.rows("SELECT count(*) FROM partition_state WHERE status <> 'success'")
        ((good,),) = world.rows("SELECT count(*) FROM safe_partitions")
        yield Check("every partition safe to read in the end", f"{good} of them" if good and not open_ else None)

    def tables(self, world: World) -> Iterator[Table]:
        newest = world.rows(
            "SELECT source, customer_id, query_name, logical_date, current_run_id, record_count FROM safe_partitions"
            f" ORDER BY logical_date DESC, customer_id LIMIT {_SHOWN}"
        )
        rows = [(str(_key(*parts)), run_id, f"{count:,}") for *parts, run_id, count in newest]
        yield Table(
            "The newest partitions and their authoritative runs", ("partition", "current_run_id", ">records"), rows
        )
        refreshes = [
            (one.query_name, one.offset, f"{one.loads}", f"{one.changed} of {one.compared}")
            for one in operations.cadence(world.ask(partitions.lifecycle)).rows
        ]
        yield Table(
            "Extractions of partitions, by the offset they served", ("query", "offset", ">loads", ">changed"), refreshes
        )
        attempts = [
            (str(_key(*parts)), run_id, verdict, error or "")
            for *parts, run_id, verdict, error, _ in self._attempts(world)
        ]
        yield Table(
            "Every run of the partition that was rejected", ("partition", "run_id", "verdict", "error"), attempts
        )

    def next(self, world: World) -> Iterator[str]:
        found = self._corrected(world)
        if found is not None:
            yield f"penstock partitions status {found[0]}"
            yield f"penstock history partition:{found[0]}"
        yield "penstock partitions cadence"


def _key(source: str, customer: str, query: str, day: object) -> PartitionKey:
    return PartitionKey.parse(f"{source}/{customer}/{query}/{day}")


def _twice(day: datetime) -> bytes:
    """An answer of Google's that has a campaign twice."""
    row = {
        "campaign": {"resourceName": "customers/1/campaigns/17", "id": "17", "name": "Campaign 17"},
        "metrics": {"clicks": "3", "conversions": 1.0},
        "segments": {"date": f"{day:%Y-%m-%d}"},
    }
    return json.dumps([{"results": [row, row], "fieldMask": "campaign.id", "requestId": "simulated"}]).encode()
