"""A sealed family: a run of price changes, its targets, and slips, which may change their run.

While the run is APPLIED, its targets have not failed and are not under way; once it is ROLLED_BACK, none is applied.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from penstock.model.machine import Actor, Edge, Machine, Parent
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import Unit
from tests.support.machines import DUE, OPERATOR, WORKER

API = frozenset({Actor.API})
DAY = date(2026, 11, 15)


class R(State):
    QUEUED = rest("QUEUED", "waits to be applied")
    APPLYING = hold("APPLYING", "its targets are applied")
    APPLIED = done("APPLIED", "all targets are applied")
    PARTIAL = fault("PARTIAL", "some targets have failed")
    ROLLED_BACK = done("ROLLED_BACK", "taken back")


class PriceRun(Unit):
    key = ("account", "day")

    status: R = R.QUEUED
    account: str
    day: date
    expected: int = 0
    applied: int = 0
    failed: int = 0
    rolled_back: int = 0
    looked_at: int = 0
    slips: int = 0


PRICE_RUN = Machine(
    "price_run",
    PriceRun,
    births={R.QUEUED},
    edges=[
        Edge(R.QUEUED, R.APPLYING, "started", WORKER),
        Edge(R.APPLYING, R.APPLIED, "all_applied", WORKER),
        Edge(R.APPLYING, R.PARTIAL, "some_failed", WORKER),
        Edge(R.PARTIAL, R.APPLYING, "retry", API | OPERATOR),
        Edge(R.APPLIED, R.ROLLED_BACK, "rollback", API),
        Edge(R.PARTIAL, R.ROLLED_BACK, "rollback", API),
        Edge(R.APPLIED, R.APPLYING, "again", OPERATOR),
    ],
    terminal={R.ROLLED_BACK},
    counters=("applied", "failed", "rolled_back", "looked_at", "slips"),
)


class T(State):
    PREVIEW = rest("PREVIEW", "shown, not sent")
    QUEUED = rest("QUEUED", "waits to be sent")
    APPLYING = work("APPLYING", "a worker sends it")
    APPLIED = done("APPLIED", "sent")
    FAILED = fault("FAILED", "given up")
    ROLLED_BACK = done("ROLLED_BACK", "taken back")


class Target(Unit):
    key = ("account", "day", "number")

    status: T = T.PREVIEW
    account: str
    day: date
    number: int
    included: bool = True
    retry_round: int = 0
    queued_at: datetime | None = None


TARGET = Machine(
    "target",
    Target,
    births={T.PREVIEW, T.QUEUED},
    edges=[
        Edge(T.PREVIEW, T.QUEUED, "included", API),
        Edge(T.QUEUED, T.APPLYING, "claim", WORKER, on_claim=True),
        Edge(T.APPLYING, T.APPLIED, "accepted", WORKER),
        Edge(T.APPLYING, T.QUEUED, "retry", WORKER),
        Edge(T.APPLYING, T.FAILED, "give_up", WORKER),
        Edge(T.FAILED, T.QUEUED, "retry_by_hand", API | OPERATOR),
        Edge(T.APPLIED, T.ROLLED_BACK, "rollback", API | WORKER),
        Edge(T.APPLIED, T.QUEUED, "send_again", OPERATOR),
    ],
    terminal={T.ROLLED_BACK},
    parent=Parent(
        "price_run",
        by=("account", "day"),
        counts={"applied": {T.APPLIED}, "failed": {T.FAILED}, "rolled_back": {T.ROLLED_BACK}},
        expected="expected",
        seals={R.APPLIED: {T.PREVIEW, T.APPLIED, T.ROLLED_BACK}, R.ROLLED_BACK: {T.PREVIEW, T.ROLLED_BACK}},
    ),
)


class S(State):
    LOOSE = rest("loose", "not filed")
    FILED = done("filed", "filed")


class Slip(Unit):
    key = ("name",)

    status: S = S.LOOSE
    name: str
    account: str
    day: date


SLIP = Machine(
    "slip",
    Slip,
    births={S.LOOSE},
    edges=[Edge(S.LOOSE, S.FILED, "filed", WORKER), Edge(S.FILED, S.LOOSE, "taken_out", OPERATOR)],
    parent=Parent(
        "price_run",
        by=("account", "day"),
        counts={"slips": {S.FILED}},
        expected="expected",
        seals={R.APPLIED: {S.FILED}},
    ),
)

SEALED = (PRICE_RUN, TARGET, SLIP)


def price_run(account: str = "a/b%c", **fields: Any) -> PriceRun:
    made: dict[str, Any] = {"account": account, "day": DAY}
    return PriceRun(**made | fields)


def target(number: int = 1, account: str = "a/b%c", **fields: Any) -> Target:
    made: dict[str, Any] = {"account": account, "day": DAY, "number": number, "due_at": DUE}
    return Target(**made | fields)


def slip(name: str = "s", account: str = "a/b%c", **fields: Any) -> Slip:
    made: dict[str, Any] = {"name": name, "account": account, "day": DAY}
    return Slip(**made | fields)
