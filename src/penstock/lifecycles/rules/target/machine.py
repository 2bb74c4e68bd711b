"""The machine `rule_target`: one variant of a run, its price before and after, and how far it has come."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from penstock.model.machine import Actor, Edge, Machine, OnError, Parent
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Column, Unit, replace

_WORKER = frozenset({Actor.WORKER})
_API = frozenset({Actor.API, Actor.OPERATOR})
_Count = Annotated[int, Column(sql_type="Integer", server_default="0")]
_Flag = Annotated[bool, Column(server_default="false")]
MAX_RETRIES = 3
RETRIES = RetryPolicy(
    max_retries=MAX_RETRIES, base=timedelta(seconds=2), cap=timedelta(seconds=64), multiplier=2.0, jitter=0.2
)
"""At most four calls, after 2, 4 and 8 seconds, each a fifth more or less."""
LARGEST_GROUP = 250
"""So many variants of one product are set by one call."""


class T(State):
    """The states of a target."""

    PREVIEW = rest("PREVIEW", "shows what would change; excluded targets stay here")
    QUEUED = rest("QUEUED", "to be applied")
    APPLYING = work("APPLYING", "claimed; its call may have left")
    APPLIED = done("APPLIED", "the price is set")
    FAILED = fault("FAILED", "given up; a dead letter")
    ROLLED_BACK = done("ROLLED_BACK", "the price is as it was before")


class Cause(StrEnum):
    """Why a target has failed."""

    #: Every call failed.
    RETRIES = "retries"
    #: The provider refuses this price or this variant.
    REFUSED = "refused"
    #: The variant does not exist any more.
    DELETED = "deleted"
    #: The live price is neither the one before nor the one after: somebody else has set it.
    CONFLICT = "conflict"
    #: Its run was stopped or cancelled before it was sent.
    HALTED = "halted"


class Target(Unit):
    """One variant of a run. `id` is the variant's; `batch_key` is the same for the variants that one call sets."""

    key = ("rule_run_id", "id")

    status: T = T.PREVIEW
    rule_run_id: UUID
    id: str
    tenant_id: Annotated[str, Column(server_default="default")] = "default"
    account: str
    product_id: str
    sku: str
    batch_key: str
    #: Amounts in minor units: `unit_amount`, `compare_at_amount` and `currency`.
    before_json: dict[str, Any]
    after_json: dict[str, Any] | None = None
    included: _Flag = True
    #: Why it is left out: a code, and a sentence.
    excluded_code: str | None = None
    excluded_reason: str | None = None

    #: The run whose target of the same variant this one rolls back, and who wanted that.
    rolls_back: UUID | None = None
    asked_by: str | None = None
    applied_at: datetime | None = None
    #: Since when a call is unanswered whose effect nobody has seen.
    in_doubt_since: datetime | None = None
    #: The last call that it was allowed is in doubt: no other follows.
    spent: _Flag = False
    retry_round: _Count = 0
    #: It rests until its run lets it go: the run is paused, or a person wants it tried again.
    held: _Flag = False
    #: Its run was stopped: it is given up, unless a call of it has arrived.
    halted: _Flag = False
    cause: Cause | None = None
    error: str | None = None
    #: The price that was found instead of the one before or after.
    live_json: dict[str, Any] | None = None
    #: A person left it as it is when its run was rolled back, and why.
    set_aside_by: str | None = None
    set_aside_reason: str | None = None


def _again(target: Target, now: datetime) -> Target:  # noqa: ARG001 - one shape
    """As a person has it tried again: it rests until its run takes it up."""
    return replace(
        target,
        attempts=0,
        spent=False,
        retry_round=target.retry_round + 1,
        held=True,
        halted=False,
        cause=None,
        error=None,
        live_json=None,
        due_at=None,
    )


rule_target = Machine(
    "rule_target",
    Target,
    births={T.PREVIEW: frozenset({Actor.WORKER})},
    edges=[
        Edge(T.PREVIEW, T.QUEUED, "include", frozenset({Actor.API})),
        Edge(T.QUEUED, T.APPLYING, "claimed", _WORKER, on_claim=True),
        Edge(T.APPLYING, T.APPLIED, "applied", _WORKER),
        Edge(T.APPLYING, T.QUEUED, "call_failed", _WORKER),
        Edge(T.APPLYING, T.FAILED, "gave_up", _WORKER),
        Edge(T.FAILED, T.QUEUED, "retry", _API, by_hand=_again),
        Edge(T.APPLIED, T.ROLLED_BACK, "roll_back", _API),
    ],
    terminal={T.ROLLED_BACK},
    on_error=OnError(retry=T.QUEUED, dead=T.FAILED, policy=RETRIES),
    checks={
        "attempts_are_few": f"attempts >= 0 AND (attempts <= {MAX_RETRIES} OR status = 'FAILED')",
        "applied_has_moment": "status NOT IN ('APPLIED', 'ROLLED_BACK') OR applied_at IS NOT NULL",
        "excluded_stays": "included OR status = 'PREVIEW'",
        "included_has_price": "NOT included OR after_json IS NOT NULL",
        "excluded_says_why": "included OR excluded_reason IS NOT NULL",
        "failed_says_why": "status <> 'FAILED' OR (cause IS NOT NULL AND error IS NOT NULL)",
        "failed_is_settled": "status <> 'FAILED' OR in_doubt_since IS NULL",
        "applied_is_settled": "status NOT IN ('APPLIED', 'ROLLED_BACK') OR in_doubt_since IS NULL",
    },
    fixed=(
        *("tenant_id", "account", "product_id", "sku", "batch_key", "before_json", "after_json", "included"),
        *("excluded_code", "excluded_reason", "rolls_back", "asked_by"),
    ),
    parent=Parent(
        "rule_run",
        by=("rule_run_id",),
        counts={
            "applied_count": {T.APPLIED},
            "failed_count": {T.FAILED},
            "rolled_back_count": {T.ROLLED_BACK},
        },
        expected="target_count",
        # A run is APPLIED over no failed target, and no target of a run that is rolled back is sent again.
        seals={
            "APPLIED": {T.PREVIEW, T.APPLIED, T.ROLLED_BACK},
            "ROLLED_BACK": {T.PREVIEW, T.APPLIED, T.FAILED, T.ROLLED_BACK},
        },
    ),
    siblings="batch_key",
    siblings_at_once=LARGEST_GROUP,
    indexes={
        "of_sku": ("sku", "applied_at"),
        "of_variant": ("account", "id", "applied_at"),
        "of_run": ("rule_run_id", "id"),
    },
)


def batch_key_of(account: str, run_id: UUID, product_id: str) -> str:
    """What the targets that one call sets have in common."""
    return f"{account}/{run_id}/{product_id}"
