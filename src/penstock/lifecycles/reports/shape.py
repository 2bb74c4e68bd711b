"""What a report must contain: its columns, by what they become in a row, and the moment that all records share."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.lifecycles.reports.machine import Aggregation, EntityType, Report
from penstock.model.clock import instant_text

COLUMNS = (
    "campaign_id",
    "ad_group_id",
    "entity_id",
    "entity",
    "variant",
    "impressions",
    "clicks",
    "cost",
    "sales",
    "purchases",
)
"""The columns of a row, which are those of `performance_row` but for the stage's."""
LARGEST = 1 << 62
LONGEST_ID = 255
"""An id is part of a key, and PostgreSQL keeps no long keys."""
_IDS = {EntityType.TARGET: "keywordId", EntityType.PRODUCT: "adId"}
_TEXTS = {EntityType.TARGET: ("keyword", "matchType"), EntityType.PRODUCT: ("advertisedAsin", "advertisedSku")}


@dataclass(frozen=True, slots=True)
class Shape:
    """`when` is the column that must hold `moment`; `ids` and `texts` are columns in the order of a row's."""

    when: str
    moment: str
    ids: tuple[str, str, str]
    texts: tuple[str, str]
    #: Whether every record has the texts, be they null; the stream does not describe every entity.
    described: bool

    @property
    def needed(self) -> list[str]:
        """What every record must have."""
        measures = ("impressions", "clicks", "cost", "sales7d", "purchases7d")
        return [self.when, *self.ids, *measures, *(self.texts if self.described else ())]


def shape_of(report: Report) -> Shape:
    """What the records of a dataset must be."""
    ids = ("campaignId", "adGroupId", _IDS[report.entity_type])
    texts = _TEXTS[report.entity_type]
    if report.aggregation is Aggregation.HOURLY:
        return Shape("hour", instant_text(report.timestamp), ids, texts, described=False)
    return Shape("date", report.report_date.isoformat(), ids, texts, described=True)
