"""When somebody should know of harvests."""

from __future__ import annotations

from datetime import timedelta

from penstock.operations.alerts.policy import Policy

_WEEK = timedelta(days=7)

POLICIES = (
    Policy(
        name="harvest_failed",
        says="The consolidation of a run was skipped or failed; the watermark stays.",
        severity="critical",
        window=_WEEK,
        events=("harvest.failed",),
        resolved_by=("harvest.watermark_advanced",),
        subject="feed",
    ),
    Policy(
        name="watermark_unpublished",
        says="A watermark could not be published.",
        severity="critical",
        window=_WEEK,
        events=("harvest.watermark_unpublished",),
        resolved_by=("harvest.watermark_published",),
        subject="feed",
    ),
    Policy(
        name="absence_unproved",
        says="Records that a run did not see were kept, because it proves nothing.",
        events=("harvest.absence_unproved",),
        subject="feed",
    ),
    Policy(
        name="reprice_refused",
        says="A price rule cannot be applied to the catalogue.",
        severity="critical",
        window=_WEEK,
        events=("harvest.reprice_refused",),
        resolved_by=("harvest.repriced",),
        subject="feed",
    ),
    Policy(
        name="unpriced_records",
        says="Records have no price by the rules in force.",
        events=("harvest.repriced",),
        subject="feed",
    ),
)
