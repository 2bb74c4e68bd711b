"""Where the reports of an account come from: days from the reporting API, hours from the stream's deltas.

Hourly is on for an account while its folder of the stream is there: `reports.stream` is set, a consumer of the stream
fills it, and the account's profile has a folder in it. For the others no hourly dataset is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import msgspec

from penstock.connectors.amazon_ads.client import REGIONS, AmazonAds, Region, daily
from penstock.connectors.amazon_ads.report import Created, ReportStatus
from penstock.connectors.amazon_ads.stream import AmazonStream, StreamGone
from penstock.connectors.oauth import Credentials
from penstock.lifecycles.reports.machine import Aggregation, Report
from penstock.lifecycles.reports.settings import NO_STREAM, Account, ReportSettings, gate_of
from penstock.settings.typed import ConfigError
from penstock.worker.flow import Io

_ENCODER = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True, slots=True)
class Source:
    """One account. Both kinds of dataset are asked for in the same words; `stream` is None where none is configured."""

    ads: AmazonAds
    stream: AmazonStream | None

    async def create(self, report: Report, io: Io) -> Created:
        """Ask for a report; for an hour, open a snapshot. Raises StreamGone where hours have no source."""
        if report.aggregation is Aggregation.HOURLY:
            return await io.run(self._stream().snapshot, report.timestamp.astimezone(UTC), report.entity_type)
        return await self.ads.create(daily(report.entity_type, report.report_date))

    async def status(self, report: Report, io: Io) -> ReportStatus:
        """How the report under way stands. Raises StreamGone where hours have no source."""
        assert report.report_id is not None  # noqa: S101 - decide asks only then
        if report.aggregation is Aggregation.HOURLY:
            return await io.run(self._stream().status, report.report_id)
        return await self.ads.status(report.report_id)

    async def cancel(self, report: Report) -> bool:
        """Ask to give it up; False when that is refused."""
        assert report.report_id is not None  # noqa: S101 - decide asks only then
        return report.aggregation is Aggregation.HOURLY or await self.ads.cancel(report.report_id)

    async def records(self, report: Report, url: str | None, io: Io) -> AsyncGenerator[bytes]:
        """The records, one on a line, some hundreds at a time. Raises StreamGone where hours have no source."""
        assert report.report_id is not None  # noqa: S101 - decide asks only then
        if report.aggregation is Aggregation.DAILY:
            # The files lie elsewhere: that place may be away while the API answers.
            gate = io.gate(f"{gate_of(report.account)}/download")
            async with gate, contextlib.aclosing(self.ads.records(url or "")) as blocks:
                async for lines in blocks:
                    yield lines
            return
        found = self._stream().records(report.report_id)
        while (some := await io.run(next, found, None)) is not None:
            yield _ENCODER.encode_lines(some)

    def _stream(self) -> AmazonStream:
        if self.stream is None:
            raise StreamGone(NO_STREAM)
        return self.stream


@dataclass(frozen=True, slots=True)
class Connection:
    """How an account is reached."""

    region: Region
    credentials: Credentials


def connections(settings: ReportSettings) -> dict[str, Connection]:
    """How each account is reached. Raises ConfigError with every account that lacks something."""
    found: dict[str, Connection] = {}
    errors = []
    for name, own in sorted(settings.accounts.items()):
        given = {part: _own_or_shared(settings, own, part) for part in ("client_id", "client_secret", "refresh_token")}
        if missing := [part for part, value in given.items() if value is None]:
            errors.append(
                f"account {name} has no {', '.join(missing)}; set it in [reports] or in [reports.accounts.{name}]"
            )
            continue
        region = REGIONS[own.region]
        place = Region(own.api_url or region.api_url, own.token_url or region.token_url)
        found[name] = Connection(place, Credentials(**given))
    if errors:
        raise ConfigError("\n".join(errors))
    return found


def _own_or_shared(settings: ReportSettings, own: Account, part: str) -> Any:
    found = getattr(own, part)
    return getattr(settings, part) if found is None else found
