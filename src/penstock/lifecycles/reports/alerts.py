"""When somebody should know of report datasets."""

from __future__ import annotations

from penstock.operations.alerts.policy import Policy

POLICIES = (
    Policy(
        name="report_given_up",
        says="A refresh was given up; the dataset goes on at its next offset.",
        events=("report.given_up",),
        subject="unit",
    ),
    Policy(name="report_stream_gone", says="Hourly data has no source.", events=("report.stream_gone",)),
    Policy(
        name="report_account_unknown",
        says="Datasets rest, because their account is not configured.",
        events=("report.account_unknown",),
    ),
)
