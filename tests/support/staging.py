"""A program that loads more rows than ride on one outcome: `python -m tests.support.staging URL` works on its ledger.

A load has as many rows as its unit says, each telling which attempt wrote it, so that a test can see a mixture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Document
from penstock.ledger.stage import Staged
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.outcome import Act, Decision, Outcome, Wait
from penstock.model.state import State, done, rest
from penstock.model.unit import Unit, replace
from penstock.worker.flow import Flow, Io
from tests.support.program import main


class S(State):
    WANTED = rest("wanted", "not loaded yet")
    LOADED = done("loaded", "its rows are visible")


class Load(Unit):
    key = ("name",)

    status: S = S.WANTED
    name: str
    row_count: int = 0
    pause_ms: int = 0  # after every thousand rows
    loaded_stage: str | None = None
    former_stage: str | None = None
    loaded_rows: int | None = None


LOAD = Machine(
    "load",
    Load,
    births={S.WANTED},
    edges=[
        Edge(S.WANTED, S.LOADED, "loaded", {Actor.WORKER}),
        Edge(S.LOADED, S.WANTED, "again", {Actor.OPERATOR}),
    ],
    tracked=("loaded_stage",),
)

measure = sa.Table(
    "measure",
    sa.MetaData(),
    sa.Column("stage_id", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True),
    sa.Column("version", sa.BigInteger),
    sa.Column("note", sa.Text),
    sa.Column("facts", Document),
    sa.CheckConstraint("position >= 0", name="measure_position"),
    sqlite_with_rowid=False,
)

MEASURES = Staged(measure, LOAD, "loaded_stage")


def measures(count: int, version: int = 0, note: str = "n") -> Iterator[dict[str, Any]]:
    return ({"position": i, "version": version, "note": note} for i in range(count))


def decide(load: Load, now: datetime, settings: None, seen: None) -> Decision:
    return Act("load", "wanted") if load.status is S.WANTED else Wait(None, "loaded")


class Loads(Flow[Load, None, None]):
    machine = LOAD
    decide = staticmethod(decide)

    async def act(self, what: str, unit: Load, seen: None, io: Io) -> Outcome[Load]:
        async with io.stage(unit, MEASURES) as stage:
            for start in range(0, unit.row_count, 1_000):
                rows = ({**row, "position": start + row["position"]} for row in measures(1_000, unit.version))
                await stage.add(row for row in rows if row["position"] < unit.row_count)
                await asyncio.sleep(unit.pause_ms / 1_000)
        after = replace(unit, status=S.LOADED, loaded_stage=stage.sealed, loaded_rows=stage.rows, due_at=None)
        return Outcome(unit, after, "loaded")


if __name__ == "__main__":
    main([LOAD], lambda: [Loads(None)])
