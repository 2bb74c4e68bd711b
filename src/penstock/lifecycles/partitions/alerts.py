"""When somebody should know of partitions."""

from __future__ import annotations

from penstock.operations.alerts.policy import Policy

POLICIES = (
    Policy(
        name="partition_failed",
        says="Landed data is not safe to consume.",
        events=("partition.failed",),
        subject="partition",
        parts=2,
    ),
    Policy(
        name="partition_kept",
        says="A rerun failed, and the last good run stays in force.",
        events=("partition.kept",),
        subject="partition",
        parts=2,
    ),
)
