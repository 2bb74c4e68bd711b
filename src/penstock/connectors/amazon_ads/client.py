"""Amazon Ads: asynchronous reports, version 3.

A report is asked for (`create`), looked at until it is ready (`status`), and its file is read (`records`). Version 3
has days and sums, no hours: hourly data comes from the Marketing Stream, see `amazon_stream`.

An `AmazonAds` is one profile; `Amazon` is what the profiles of a region share. They know nothing of the ledger, and
retry nothing, but for one renewal of a token that the provider refuses.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.connectors.amazon_ads.report import Created, ReportState, ReportStatus
from penstock.connectors.http.client import Http, NotJson, Response
from penstock.connectors.http.download import Allowed, Downloads
from penstock.connectors.http.exchange import Transport
from penstock.connectors.oauth import Credentials, Login
from penstock.connectors.records import Limits, records
from penstock.model.clock import Clock, parse_instant
from penstock.model.errors import InDoubt, Rejected, Transient, UsageError
from penstock.settings.redaction import redact

ORIGIN = "Amazon Ads reporting, version 3"
DOWNLOAD_HOSTS = ("offline-report-storage-*.s3.amazonaws.com", "offline-report-storage-*.s3.*.amazonaws.com")
"""Where Amazon keeps the files of reports."""

_PATH = "/reporting/reports"
_MEDIA = "application/vnd.createasyncreportrequest.v3+json"
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_UNAUTHORIZED, _NOT_FOUND, _TOO_EARLY = 401, 404, 425
_FAILURES = frozenset({"FAILED", "FAILURE", "CANCELLED"})
_PATIENCE = 60.0
_COMPARED = ("adProduct", "reportTypeId", "timeUnit", "groupBy", "columns", "filters")


@dataclass(frozen=True, slots=True)
class Region:
    """Where the accounts of a part of the world are served."""

    api_url: str
    token_url: str


REGIONS = {
    "NA": Region("https://advertising-api.amazon.com", "https://api.amazon.com/auth/o2/token"),
    "EU": Region("https://advertising-api-eu.amazon.com", "https://api.amazon.co.uk/auth/o2/token"),
    "FE": Region("https://advertising-api-fe.amazon.com", "https://api.amazon.co.jp/auth/o2/token"),
}


class DuplicateReport(Transient):
    """Amazon calls the request a duplicate of a report that cannot stand for it; ask again after `retry_after` s."""

    answered = True

    def __init__(self, message: str, report_id: str | None) -> None:
        super().__init__(message)
        self.report_id = report_id
        self.retry_after = _PATIENCE


@dataclass(frozen=True, slots=True)
class ReportSpec:
    """What a report is to contain. Two that compare equal but for the order of their parts are the same report."""

    start: date
    end: date
    report_type: str
    group_by: tuple[str, ...]
    columns: tuple[str, ...]
    filters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    time_unit: str = "DAILY"
    ad_product: str = "SPONSORED_PRODUCTS"

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise UsageError(f"a report from {self.start} to {self.end} ends before it starts")

    def body(self) -> dict[str, Any]:
        """The request, as it is sent."""
        configuration: dict[str, Any] = {
            "adProduct": self.ad_product,
            "reportTypeId": self.report_type,
            "groupBy": list(self.group_by),
            "columns": list(self.columns),
            "timeUnit": self.time_unit,
            "format": "GZIP_JSON",
        }
        if self.filters:
            configuration["filters"] = [{"field": field, "values": list(values)} for field, values in self.filters]
        return {
            "name": f"{self.report_type} {self.start}",
            "startDate": self.start.isoformat(),
            "endDate": self.end.isoformat(),
            "configuration": configuration,
        }


_METRICS = ("impressions", "clicks", "cost", "purchases7d", "sales7d")
COLUMNS = {
    "target": ("date", "campaignId", "adGroupId", "keywordId", "keyword", "matchType", *_METRICS),
    "product": ("date", "campaignId", "adGroupId", "adId", "advertisedAsin", "advertisedSku", *_METRICS),
}
"""The columns of the daily reports, by entity type."""
_REPORT_TYPES = {"target": ("spTargeting", ("targeting",)), "product": ("spAdvertisedProduct", ("advertiser",))}


def daily(entity_type: str, day: date) -> ReportSpec:
    """The report of one day: `target` by targeting, `product` by advertised product."""
    if entity_type not in _REPORT_TYPES:
        raise UsageError(f"{entity_type!r} is not an entity type; use one of {', '.join(_REPORT_TYPES)}")
    report_type, group_by = _REPORT_TYPES[entity_type]
    return ReportSpec(day, day, report_type, group_by, COLUMNS[entity_type])


class Amazon:
    """What the profiles of a region share: their tokens and their downloads. `transport` replaces the network.

    No two profiles share a connection to the API: an answer that comes too late can then reach no other profile.
    """

    def __init__(
        self,
        region: Region,
        clock: Clock,
        *,
        downloads: Allowed | None = None,
        limits: Limits | None = None,
        transport: Transport | None = None,
    ) -> None:
        token = urlsplit(region.token_url)
        self.clock = clock
        self.limits = limits or Limits()
        self._region = region
        self._transport = transport
        self._https: dict[str, Http] = {}
        self.downloads = Downloads(downloads or Allowed(DOWNLOAD_HOSTS), clock, transport=transport)
        self._token_http = Http(f"{token.scheme}://{token.netloc}", clock, transport=transport)
        self._token_path = token.path
        self._logins: dict[Credentials, Login] = {}

    def profile(self, profile_id: str, credentials: Credentials) -> AmazonAds:
        """One profile; those with the same credentials use the same token."""
        login = self._logins.get(credentials)
        if login is None:
            login = self._logins[credentials] = Login(credentials, self._token_http, self.clock, self._token_path)
        http = self._https.get(profile_id)
        if http is None:
            http = self._https[profile_id] = Http(self._region.api_url, self.clock, transport=self._transport)
        return AmazonAds(profile_id, login, http, self)

    async def close(self) -> None:
        """Close the connections."""
        for login in self._logins.values():
            login.close()
        for http in (*self._https.values(), self._token_http):
            await http.close()
        await self.downloads.close()


class AmazonAds:
    """The reports of one profile; made by `Amazon.profile`."""

    def __init__(self, profile_id: str, login: Login, http: Http, amazon: Amazon) -> None:
        self._login = login
        self._clock = amazon.clock
        self._limits = amazon.limits
        self._http = http
        self._downloads = amazon.downloads
        self._headers = {
            "Amazon-Advertising-API-ClientId": login.credentials.client_id,
            "Amazon-Advertising-API-Scope": profile_id,
        }

    async def create(self, spec: ReportSpec) -> Created:
        """Ask for a report.

        After InDoubt or Throttled, ask again: if the first request did arrive, Amazon names the report that it made,
        and that report is adopted. Raises DuplicateReport when Amazon names a report that is another one or has failed.
        """
        response = await self._call("POST", _PATH, answers=(_TOO_EARLY,), json=spec.body(), media=_MEDIA)
        if response.status_code == _TOO_EARLY:
            return await self._adopt(spec, response)
        answer = _object(response)
        report_id = answer.get("reportId")
        if not isinstance(report_id, str) or not report_id:
            raise InDoubt(f"POST {_PATH}: accepted, but the answer names no report")
        return Created(report_id, _instant(answer.get("createdAt")) or self._clock.now())

    async def status(self, report_id: str) -> ReportStatus:
        """How far a report is. A word that is not known means: not done."""
        answer = await self._get(report_id)
        if answer is None:
            reason = "Amazon does not know this report"
            return ReportStatus(report_id, ReportState.FAILED, "404", failure_reason=reason)
        return _status(report_id, answer)

    async def cancel(self, report_id: str) -> bool:
        """Ask to give a report up; False when Amazon refuses."""
        try:
            await self._call("DELETE", _path(report_id), repeatable=True)
        except Rejected:
            return False
        return True

    def download(self, url: str) -> AsyncGenerator[bytes]:
        """The bytes of a report's file. Raises LinkExpired, RefusedLink, TooLarge or Transient."""
        return self._downloads.get(url)

    async def records(self, url: str) -> AsyncGenerator[bytes]:
        """The records of a report's file as they came, one on a line, some hundreds at a time.

        Raises what `download` raises, and BadReport.
        """
        async with (
            contextlib.aclosing(self.download(url)) as pieces,
            contextlib.aclosing(records(pieces, self._limits)) as blocks,
        ):
            async for lines in blocks:
                yield lines

    async def _adopt(self, spec: ReportSpec, response: Response) -> Created:
        found = _UUID.search(response.text)
        if found is None:
            said = redact(response.text)[:200]
            raise DuplicateReport(f"POST {_PATH}: 425, and the answer names no report: {said}", None)
        report_id = found[0]
        answer = await self._get(report_id)
        if answer is None:
            raise DuplicateReport(f"POST {_PATH}: 425, a duplicate of {report_id}, which does not exist", report_id)
        if differing := differences(spec, answer):
            what = ", ".join(differing)
            raise DuplicateReport(f"POST {_PATH}: 425, a duplicate of {report_id}, which differs in {what}", report_id)
        status = _status(report_id, answer)
        if status.state is ReportState.FAILED:
            raise DuplicateReport(f"POST {_PATH}: 425, a duplicate of {report_id}, which is {status.said}", report_id)
        return Created(report_id, status.created_at or self._clock.now(), adopted=True)

    async def _get(self, report_id: str) -> dict[str, Any] | None:
        path = _path(report_id)
        response = await self._call("GET", path, answers=(_NOT_FOUND,))
        if response.status_code == _NOT_FOUND:
            return None
        answer = _object(response)
        if not answer:  # a page of somebody's says nothing of the report, not even that it is pending
            raise Transient(f"GET {path}: {response.status_code}, and the answer is not a report")
        return answer

    async def _call(
        self, method: str, path: str, *, answers: Collection[int] = (), media: str | None = None, **request: Any
    ) -> Response:
        """One call; a token that is refused is renewed once."""
        headers = self._headers | ({"Content-Type": media} if media else {})
        token = await self._login.token()
        headers["Authorization"] = f"Bearer {token}"
        first = (*answers, _UNAUTHORIZED)
        response = await self._http.call(method, path, answers=first, headers=headers, **request)
        if response.status_code != _UNAUTHORIZED:
            return response
        headers["Authorization"] = f"Bearer {await self._login.token(instead_of=token)}"
        return await self._http.call(method, path, answers=answers, headers=headers, **request)


def differences(spec: ReportSpec, answer: Mapping[str, Any]) -> list[str]:
    """In what a report of Amazon's differs from the one that is wanted; the order of lists does not matter."""
    wanted, found = spec.body(), dict(answer)
    configuration = found.get("configuration")
    found_in = configuration if isinstance(configuration, dict) else {}
    differing = [name for name in ("startDate", "endDate") if found.get(name) != wanted[name]]
    wanted_in = wanted["configuration"]
    return differing + [name for name in _COMPARED if _unordered(found_in.get(name)) != _unordered(wanted_in.get(name))]


def _unordered(value: Any) -> Any:
    """Something that is equal for equal documents, whatever the order of their lists; an unset list is an empty one."""
    if isinstance(value, dict):
        return tuple(sorted((name, _unordered(part)) for name, part in value.items()))
    if isinstance(value, list):
        return tuple(sorted((_unordered(part) for part in value), key=repr))
    return () if value is None else value


def _status(report_id: str, answer: Mapping[str, Any]) -> ReportStatus:
    said, url, size = str(answer.get("status")), answer.get("url"), answer.get("fileSize")
    has_url = isinstance(url, str) and bool(url)
    if said in _FAILURES:
        state = ReportState.FAILED
    else:
        # COMPLETED without a link was seen: it is not ready yet.
        state = ReportState.COMPLETED if said == "COMPLETED" and has_url else ReportState.PENDING
    reason = answer.get("failureReason")
    return ReportStatus(
        report_id,
        state,
        said,
        url=url if has_url else None,
        url_expires_at=_instant(answer.get("urlExpiresAt")),
        file_size=size if isinstance(size, int) else None,
        failure_reason=None if reason is None else redact(str(reason))[:500],
        created_at=_instant(answer.get("createdAt")),
        generated_at=_instant(answer.get("generatedAt")),
    )


def _object(response: Response) -> dict[str, Any]:
    """The answer; an empty one where it cannot be read, since only the caller knows what that means."""
    try:
        answer = response.json()
    except NotJson:
        return {}
    return answer if isinstance(answer, dict) else {}


def _instant(value: Any) -> datetime | None:
    try:
        return parse_instant(value)
    except (TypeError, ValueError):
        return None


def _path(report_id: str) -> str:
    return f"{_PATH}/{quote(report_id, safe='')}"
