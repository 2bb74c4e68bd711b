"""The performance that Amazon's simulators report: made up, the same every time, and restated as it ages.

The truth of a day depends on the seed, the profile, the day and the report type alone. What is known of it grows:
impressions and clicks are final after three days, conversions after 28, with steps after 1 and 7. So the refreshes at
1, 3, 7 and 30 days change the data; those at 5, 14 and 60 do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

_KEYWORDS = ("running shoes", "trail [shoes]", 'the "best" boot', "botas de montaña", "sandals, women")
_MATCH_TYPES = ("BROAD", "PHRASE", "EXACT")
_TRAFFIC_FINAL = 3
_CONVERSION_STEPS = ((1, 55), (7, 80), (28, 95))


def traffic_percent(age: timedelta) -> int:
    """How much of the impressions and clicks is known at that age."""
    return 100 if age >= timedelta(days=_TRAFFIC_FINAL) else 96


def conversion_percent(age: timedelta) -> int:
    """How much of the conversions is known at that age."""
    return next((percent for days, percent in _CONVERSION_STEPS if age < timedelta(days=days)), 100)


@dataclass(frozen=True, slots=True)
class Performance:
    """What happened; `rows` a day and type."""

    seed: int = 7
    rows: int = 20

    def report(self, profile: str, report_type: str, days: Iterable[date], at: datetime) -> Iterator[dict[str, Any]]:
        """The records of a report as they are known at an instant; all columns."""
        for day in days:
            midnight = datetime(day.year, day.month, day.day, tzinfo=at.tzinfo)
            age = at - midnight
            for number in range(self.rows):
                yield {"date": day.isoformat(), **self.row(profile, report_type, day.isoformat(), number, age)}

    def row(self, profile: str, report_type: str, when: str, number: int, age: timedelta) -> dict[str, Any]:
        """One row of a day or an hour at an age."""
        own = self.dice(profile, report_type, number)
        luck = self.dice(profile, report_type, number, when)
        impressions = luck[0] * 8 * traffic_percent(age) // 100
        clicks = luck[1] % 90 * traffic_percent(age) // 100
        purchases = luck[2] % 40 * conversion_percent(age) // 100
        row: dict[str, Any] = {
            "campaignId": 10**14 + own[0] % 5,
            "adGroupId": 2 * 10**14 + own[1] % 20,
            "impressions": impressions,
            "clicks": clicks,
            "cost": clicks * (35 + own[2] % 60) / 100,
            "purchases7d": purchases,
            "sales7d": purchases * (999 + own[3] * 10) / 100,
        }
        if report_type == "spTargeting":
            keyword = f"{_KEYWORDS[number % len(_KEYWORDS)]} {number}"
            match_type = _MATCH_TYPES[number % len(_MATCH_TYPES)]
            return row | {"keywordId": 3 * 10**14 + number, "keyword": keyword, "matchType": match_type}
        sku = {"advertisedAsin": f"B0{number:08}", "advertisedSku": f"SKU-{number}"}
        return row | {"adId": 4 * 10**14 + number, **sku}

    def dice(self, *parts: object) -> bytes:
        """Eight bytes that depend on the seed and the parts alone."""
        text = "/".join(map(str, (self.seed, *parts)))
        return hashlib.blake2b(text.encode(), digest_size=8).digest()
