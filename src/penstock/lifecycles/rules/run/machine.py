"""The machine `rule_run`: one execution of a rule. The kernel counts its targets on it.

A rollback and a repair are runs like any other, on the same machines; they name the run that they undo or mend.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import Column, Unit

_WORKER = frozenset({Actor.WORKER})
_API = frozenset({Actor.API, Actor.OPERATOR})
_Count = Annotated[int, Column(sql_type="Integer", server_default="0")]
_Flag = Annotated[bool, Column(server_default="false")]


class R(State):
    """The states of a run."""

    PREVIEW = rest("PREVIEW", "shows what would change; nothing is sent")
    QUEUED = hold("QUEUED", "waits for its start, or for another run of its account")
    APPLYING = work("APPLYING", "its prices are being set")
    APPLIED = done("APPLIED", "every target is applied")
    PARTIAL = fault("PARTIAL", "some targets are applied, others have failed")
    FAILED = fault("FAILED", "no target is applied")
    ROLLED_BACK = done("ROLLED_BACK", "what it applied is as it was before")


class Kind(StrEnum):
    """What a run is for."""

    APPLY = "apply"
    ROLLBACK = "rollback"
    REPAIR = "repair"


class Mode(StrEnum):
    """How an applying run goes on."""

    RUNNING = "running"
    PAUSED = "paused"
    #: What was not sent yet is given up.
    HALTING = "halting"


class Run(Unit):
    """One execution of one version of a rule for one account.

    `target_count` are the targets that are to be applied; excluded ones stay in the preview with their reason.
    """

    key = ("id",)

    status: R = R.PREVIEW
    id: UUID
    tenant_id: Annotated[str, Column(server_default="default")] = "default"
    project_id: Annotated[str, Column(server_default="default")] = "default"
    account: str
    currency: str
    kind: Kind = Kind.APPLY
    rule_name: str
    rule_version: Annotated[int, Column(sql_type="Integer")]
    #: The run that this one undoes or mends.
    of_run_id: UUID | None = None
    #: Of that run, the targets that are meant; None: all.
    wanted: list[Any] | None = None
    #: Who asked for it (`actor`), with which `correlationId`, by which `source`.
    metadata: dict[str, Any]

    created_at: datetime
    queued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    #: It starts no earlier than this, and is rolled back at that moment.
    start_at: datetime | None = None
    end_at: datetime | None = None
    #: That moment has come, and a run that rolls it back was made.
    sale_ended: _Flag = False

    #: How far the preview has come: the last variant that was looked at, when all targets were laid down, and when
    #: they were summed up.
    position: str | None = None
    laid_at: datetime | None = None
    previewed_at: datetime | None = None
    #: What queueing is bound to: the rule, and before and after of every target.
    preview_digest: str | None = None
    #: Totals of the preview: sums, the largest changes, what was excluded and why.
    summary: dict[str, Any] = {}
    #: Queue it as soon as its preview is complete.
    queue_when_ready: _Flag = False

    target_count: _Count = 0
    excluded_count: _Count = 0
    applied_count: _Count = 0
    failed_count: _Count = 0
    rolled_back_count: _Count = 0

    needs_approval: _Flag = False
    approved_by: str | None = None
    approved_at: datetime | None = None

    mode: Mode = Mode.RUNNING
    mode_by: str | None = None
    mode_reason: str | None = None
    #: How often failed targets were tried again by hand.
    retry_round: _Count = 0
    #: Targets that had failed before and that the last of those left alone: they do not stop it again.
    failed_before: _Count = 0
    #: How often it was compared with the live prices, how far the current comparison is, and its report.
    reconciled: _Count = 0
    reconcile_position: str | None = None
    report_id: UUID | None = None
    #: Compare it at this run's next step, whatever the schedule says.
    reconcile_wanted: _Flag = False
    error: str | None = None


rule_run = Machine(
    "rule_run",
    Run,
    births={R.PREVIEW: frozenset({Actor.API, Actor.OPERATOR, Actor.SCHEDULER, Actor.WORKER})},
    edges=[
        Edge(R.PREVIEW, R.QUEUED, "queue", frozenset({Actor.API, Actor.SCHEDULER})),
        Edge(R.QUEUED, R.APPLYING, "started", _WORKER),
        Edge(R.APPLYING, R.APPLIED, "all_applied", _WORKER),
        Edge(R.APPLYING, R.PARTIAL, "some_failed", _WORKER),
        Edge(R.APPLYING, R.FAILED, "none_applied", _WORKER),
        Edge(R.PARTIAL, R.APPLYING, "retry", _API),
        Edge(R.FAILED, R.APPLYING, "retry", _API),
        Edge(R.APPLIED, R.ROLLED_BACK, "roll_back", _API),
        Edge(R.PARTIAL, R.ROLLED_BACK, "roll_back", _API),
    ],
    terminal={R.ROLLED_BACK},
    on_error=OnError(),
    checks={
        "queued_has_moment": "(status = 'PREVIEW') = (queued_at IS NULL)",
        "started_has_moment": "status IN ('PREVIEW', 'QUEUED') OR started_at IS NOT NULL",
        "finished_has_moment": "(status IN ('PREVIEW', 'QUEUED', 'APPLYING')) = (finished_at IS NULL)",
        "starts_after_queued": "started_at IS NULL OR (queued_at IS NOT NULL AND queued_at <= started_at)",
        "finishes_after_start": "finished_at IS NULL OR (started_at IS NOT NULL AND started_at <= finished_at)",
        "queued_was_previewed": "status = 'PREVIEW' OR (previewed_at IS NOT NULL AND preview_digest IS NOT NULL)",
        "queued_is_approved": "status = 'PREVIEW' OR NOT needs_approval OR approved_by IS NOT NULL",
        "applied_is_whole": (
            "status <> 'APPLIED' OR (failed_count = 0 AND applied_count + rolled_back_count = target_count)"
        ),
        "partial_has_both": (
            "status <> 'PARTIAL' OR (applied_count + rolled_back_count > 0 AND applied_count < target_count)"
        ),
        "counts_from_zero": (
            "target_count >= 0 AND excluded_count >= 0 AND applied_count >= 0 AND failed_count >= 0"
            " AND rolled_back_count >= 0 AND applied_count + failed_count + rolled_back_count <= target_count"
        ),
        "ends_after_start": "start_at IS NULL OR end_at IS NULL OR start_at < end_at",
        "kind_known": "kind IN ('apply', 'rollback', 'repair')",
        "kind_has_run": "(kind = 'apply') = (of_run_id IS NULL)",
        "mode_known": "mode IN ('running', 'paused', 'halting')",
    },
    # They change where its state does, and rarely else: the history tells them of every moment, at next to no cost.
    tracked=("mode", "mode_by", "mode_reason", "queue_when_ready", "retry_round", "finished_at", "error"),
    fixed=(
        *("tenant_id", "project_id", "account", "currency", "kind", "rule_name", "rule_version", "of_run_id", "wanted"),
        *("metadata", "created_at", "start_at", "end_at"),
    ),
    counters=("applied_count", "failed_count", "rolled_back_count"),
    key_is_primary=True,
    indexes={"of_account": ("account", "status"), "of_rule": ("rule_name", "created_at"), "of_run": ("of_run_id",)},
)

#: A run that is queued or under way.
OPEN = (R.QUEUED, R.APPLYING)
#: A run that has ended with prices set.
APPLIED = (R.APPLIED, R.PARTIAL)


def asked_by(run: Run) -> str:
    """Who asked for the run: whom the history names where a worker carries out what a person wants."""
    return str(run.metadata.get("actor"))
