"""A partition that is parked holds its run up, and `doctor` says so."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import MACHINES
from penstock.lifecycles.harvest.partition.machine import Partition
from penstock.lifecycles.harvest.run.machine import R, Run, RunType
from penstock.lifecycles.harvest.tables import DATA_TABLES
from penstock.model.machine import Actor

NOW = datetime(2020, 11, 2, 12, tzinfo=UTC)
RUN = UUID("11111111-1111-4111-8111-111111111111")


def test_a_run_that_waits_for_a_parked_partition(ledger_url):
    given = {"run_type": RunType.FULL, "expected_workers": 1, "started_at": NOW, "window_to": NOW}
    run = Run(run_id=RUN, feed="stones", expected_records=90, **given)  # type: ignore[arg-type]
    span = {"ordinal": 0, "low": 0, "expected_records": 90, "created_at": NOW, "updated_at": NOW, "due_at": NOW}
    partition = Partition(run_id=RUN, partition_id="p1", feed="stones", **span)  # type: ignore[arg-type]
    known = {m.name: m for m in MACHINES}
    with Ledger.open(ledger_url, MACHINES, create=True, data_tables=DATA_TABLES) as ledger:
        ledger.birth([run, partition], actor=Actor.SCHEDULER, who="test")
        who = {"actor": Actor.WORKER, "who": "test", "reason": "test"}
        ledger.move_many("harvest_run", [str(RUN)], R.WORKERS_RUNNING, **who)  # type: ignore[arg-type]
        worker = ledger.incarnation()
        worker.register()
        (unit,) = worker.claim({"harvest_partition": 1})
        worker.park(unit, "its step killed 3 workers in a row")
        findings = [f for f in examine(ledger.database, known) if f.check == "families"]
    assert [(f.subject, f.severity, f.message) for f in findings] == [
        (
            f"harvest_run:{RUN}",
            "warning",
            f"waits for 1 parked harvest_partition: {unit.unit_id}; unpark or end them",
        )
    ]
