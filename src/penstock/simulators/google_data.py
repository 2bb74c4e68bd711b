"""The accounts that Google's simulator knows, and the little GAQL that it understands.

Data is made up, and depends on the seed, the customer, the day and the entity alone. Of a day that is not over where
the customer is, only its share is known; conversions are known in full three days later. GAQL is: SELECT fields FROM
resource, restricted to a day or to days, with a LIMIT.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from itertools import islice
from typing import Any

from penstock.connectors.google_ads.client import selected, wire_name
from penstock.model.cadence import local_instant, parse_zone

INT64, DOUBLE, TEXT = "int64", "double", "text"
_METRICS = {
    "segments.date": TEXT,
    "metrics.impressions": INT64,
    "metrics.clicks": INT64,
    "metrics.cost_micros": INT64,
    "metrics.conversions": DOUBLE,
    "metrics.ctr": DOUBLE,
}
_CUSTOMER = {
    "customer.id": INT64,
    "customer.descriptive_name": TEXT,
    "customer.currency_code": TEXT,
    "customer.time_zone": TEXT,
}
_CAMPAIGN = _CUSTOMER | {"campaign.id": INT64, "campaign.name": TEXT, "campaign.status": TEXT}
_AD_GROUP = _CAMPAIGN | {"ad_group.id": INT64, "ad_group.name": TEXT, "ad_group.status": TEXT}
RESOURCES = {
    "customer": _CUSTOMER | _METRICS,
    "campaign": _CAMPAIGN | _METRICS,
    "ad_group": _AD_GROUP | _METRICS,
}
"""What can be selected from each resource."""

_FROM = re.compile(r"\sFROM\s+([a-z_]+)\s*(.*)\Z", re.IGNORECASE | re.DOTALL)
_REST = re.compile(
    r"(?:WHERE\s+segments\.date\s*(?:=\s*'([0-9-]+)'|BETWEEN\s+'([0-9-]+)'\s+AND\s+'([0-9-]+)')\s*)?"
    r"(?:ORDER\s+BY\s+[a-z_., ]+?\s*)?(?:LIMIT\s+([1-9][0-9]*)\s*)?\Z",
    re.IGNORECASE,
)
_MOST_DAYS = 400
_GROUPS = 4
_FINAL = timedelta(days=3)
_STATUSES = ("ENABLED", "ENABLED", "PAUSED")


class BadQuery(Exception):
    """Google would not run it: the name of its `queryError`, and its words."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True)
class Gaql:
    """A query, understood."""

    fields: tuple[str, ...]
    resource: str
    days: tuple[date, ...]
    limit: int | None

    @classmethod
    def parse(cls, text: str) -> Gaql:
        """Raises BadQuery."""
        fields, where = tuple(selected(text)), _FROM.search(text)
        if not fields or where is None:
            raise BadQuery("UNEXPECTED_INPUT", "Error in query: unexpected input.")
        resource, rest = where[1].lower(), _REST.match(where[2])
        if resource not in RESOURCES:
            raise BadQuery("BAD_RESOURCE_TYPE_IN_FROM_CLAUSE", f"'{resource}' is not a valid resource name.")
        if unknown := [name for name in fields if name not in RESOURCES[resource]]:
            raise BadQuery("UNRECOGNIZED_FIELD", f"Unrecognized field in the query: '{unknown[0]}'.")
        if rest is None:
            raise BadQuery("BAD_SYMBOL", f"Error in query: unexpected input {where[2][:40]}.")
        days = _days(rest[1] or rest[2], rest[1] or rest[3])
        if "segments.date" in fields and not days:
            raise BadQuery("EXPECTED_FILTERS_ON_DATE_RANGE", "A finite date range must be specified.")
        return cls(fields, resource, days, int(rest[4]) if rest[4] else None)

    @property
    def mask(self) -> str:
        return ",".join(map(wire_name, self.fields))


@dataclass(frozen=True, slots=True)
class Campaigns:
    """What happened in the accounts: so many campaigns in each, with four ad groups."""

    seed: int = 7
    campaigns: int = 5
    #: Where the days of a customer begin; others live by UTC.
    time_zones: Mapping[str, str] = field(default_factory=dict)

    def rows(self, customer: str, query: Gaql, now: datetime) -> Iterator[dict[str, Any]]:
        """The rows of a query as they are known now, as Google writes them: int64 as text, what is not set left out."""
        found = (
            self._row(customer, query, number, day, now)
            for day in query.days or (now.date(),)
            for number in range(self._count(query.resource))
        )
        return islice(found, query.limit)

    def _count(self, resource: str) -> int:
        return {"customer": 1, "campaign": self.campaigns}.get(resource, self.campaigns * _GROUPS)

    def _row(self, customer: str, query: Gaql, number: int, day: date, now: datetime) -> dict[str, Any]:
        kinds = RESOURCES[query.resource]
        values = self._values(customer, query.resource, number, day, now)
        row: dict[str, Any] = {}
        for name in query.fields:
            entity, _, part = name.partition(".")
            place = row.setdefault(wire_name(entity), self._named(customer, entity, values))
            if values[name] is not None:
                place[wire_name(part)] = str(values[name]) if kinds[name] == INT64 else values[name]
        return row

    def _named(self, customer: str, entity: str, values: dict[str, Any]) -> dict[str, Any]:
        if entity in ("metrics", "segments"):
            return {}
        own = "" if entity == "customer" else f"/{wire_name(entity)}s/{values[f'{entity}.id']}"
        return {"resourceName": f"customers/{customer}{own}"}

    def _values(self, customer: str, resource: str, number: int, day: date, now: datetime) -> dict[str, Any]:
        luck = self._dice(customer, resource, number, day)
        campaign = number // _GROUPS if resource == "ad_group" else number
        begins, ends = self._begins(customer, day), self._begins(customer, day + timedelta(days=1))
        age = now - begins
        share = min(1.0, max(0.0, age / (ends - begins)))
        impressions = int((luck[0] * 8 + luck[1]) * share)
        clicks = int(luck[2] % ((luck[0] * 8 + luck[1]) // 10 + 1) * share)
        conversions = luck[3] % (clicks + 1) * (100 if age >= _FINAL else 60) / 100
        return {
            "customer.id": int(customer),
            "customer.descriptive_name": f"Account {customer}",
            "customer.currency_code": "EUR",
            "customer.time_zone": self.time_zones.get(customer, "UTC"),
            "campaign.id": 10**10 + campaign,
            "campaign.name": f'Campaña {campaign} "[{{}}]"',
            "campaign.status": _STATUSES[campaign % len(_STATUSES)],
            "ad_group.id": 2 * 10**10 + number,
            "ad_group.name": None if number % 5 == _GROUPS else f"Group {number}",
            "ad_group.status": _STATUSES[number % len(_STATUSES)],
            "segments.date": day.isoformat(),
            "metrics.impressions": impressions,
            "metrics.clicks": clicks,
            "metrics.cost_micros": clicks * (350_000 + luck[4] * 1_000),
            "metrics.conversions": conversions,
            "metrics.ctr": clicks / impressions if impressions else 0.0,
        }

    def _begins(self, customer: str, day: date) -> datetime:
        return local_instant(day, time(), parse_zone(self.time_zones.get(customer, "UTC")))

    def _dice(self, *parts: object) -> bytes:
        text = "/".join(map(str, (self.seed, *parts)))
        return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _days(first: str | None, last: str | None) -> tuple[date, ...]:
    if first is None or last is None:
        return ()
    try:
        start, end = date.fromisoformat(first), date.fromisoformat(last)
    except ValueError:
        raise BadQuery("INVALID_VALUE_WITH_DATE_OPERATOR", "Invalid date literal supplied.") from None
    return tuple(start + timedelta(days=n) for n in range(min((end - start).days + 1, _MOST_DAYS)))
