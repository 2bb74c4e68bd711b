"""A report as the connector tells of it, wherever it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ReportState(StrEnum):
    """Where a report stands, whatever Amazon calls it."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Created:
    """A report that is under way. An `adopted` one was asked for earlier: its `created_at` is the provider's."""

    report_id: str
    created_at: datetime
    adopted: bool = False


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """What the provider says of a report. A completed one has a `url`; `said` is the provider's own word."""

    report_id: str
    state: ReportState
    said: str
    url: str | None = None
    url_expires_at: datetime | None = None
    file_size: int | None = None
    failure_reason: str | None = None
    created_at: datetime | None = None
    generated_at: datetime | None = None
