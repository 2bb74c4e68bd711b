"""Amazon Marketing Stream as its consumer leaves it: files of deltas in the folder that the connector reads.

Each row of an hour arrives as three deltas of each dataset. The first files hold about two thirds of them, some twice;
`late` writes the rest, with a few of the first ones again. An hour in which nothing happened is written too, as empty
files: `quiet`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from penstock.connectors.amazon_ads.stream import DATASETS
from penstock.model.clock import instant_text
from penstock.simulators.amazon_data import Performance

_PARTS = 3
_FINAL = timedelta(days=60)


@dataclass(frozen=True, slots=True)
class StreamSimulator:
    """Writes what the stream of a profile would have brought."""

    root: Path
    performance: Performance = field(default_factory=Performance)

    def deltas(self, profile: str, hour: datetime, dataset: str) -> list[dict[str, Any]]:
        """All deltas of an hour, once each."""
        rows = range(self.performance.rows)
        return [self._delta(profile, hour, dataset, row, part) for row in rows for part in range(_PARTS)]

    def write(self, profile: str, hour: datetime, *, late: bool = False) -> list[Path]:
        """Write the files of an hour, or those that come late; some deltas come twice in them."""
        written = []
        for dataset in DATASETS:
            found = self.deltas(profile, hour, dataset)
            early = [delta for number, delta in enumerate(found) if number % _PARTS < _PARTS - 1]
            rest = [delta for number, delta in enumerate(found) if number % _PARTS == _PARTS - 1]
            lines = rest + early[::5] if late else early + early[::4]
            written.append(
                _appear(self._folder(profile, dataset, hour) / f"{'late' if late else 'first'}.jsonl", lines)
            )
        return written

    def quiet(self, profile: str, hour: datetime) -> list[Path]:
        """Say of an hour that nothing happened in it: one empty file for each dataset."""
        return [_appear(self._folder(profile, dataset, hour) / "none.jsonl", []) for dataset in DATASETS]

    def _folder(self, profile: str, dataset: str, hour: datetime) -> Path:
        return self.root / profile / dataset / hour.astimezone(UTC).strftime("%Y-%m-%dT%H")

    def _delta(self, profile: str, hour: datetime, dataset: str, number: int, part: int) -> dict[str, Any]:
        when = instant_text(hour)
        row = self.performance.row(profile, "spTargeting", when, number, _FINAL)
        about = {
            "idempotency_id": self.performance.dice("delta", profile, dataset, when, number, part).hex(),
            "dataset_id": dataset,
            "advertiser_id": f"ENTITY{profile}",
            "campaign_id": str(row["campaignId"]),
            "ad_group_id": str(row["adGroupId"]),
            "ad_id": str(4 * 10**14 + number),
            "keyword_id": str(row["keywordId"]),
            "currency": "EUR",
            "time_window_start": when,
        }
        if dataset == "sp-conversion":
            purchases = _share(row["purchases7d"], part)
            sales = float(purchases * Decimal("19.99"))
            return about | {"attributed_conversions_7d": purchases, "attributed_sales_7d": sales}
        clicks = _share(row["clicks"], part)
        described = {"keyword_text": row["keyword"], "match_type": row["matchType"]}
        traffic = {"impressions": _share(row["impressions"], part), "clicks": clicks}
        return about | described | traffic | {"cost": float(clicks * Decimal("0.45"))}


def _share(whole: int, part: int) -> int:
    """A third; the first one takes what is left over."""
    return whole // _PARTS + (whole % _PARTS if part == 0 else 0)


def _appear(path: Path, deltas: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    growing = path.with_suffix(".part")
    growing.write_text("".join(json.dumps(delta) + "\n" for delta in deltas))
    return growing.rename(path)
