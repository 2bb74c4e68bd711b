"""The seed's state table and keys, as the databases keep them against anyone who types SQL."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import MACHINES
from penstock.lifecycles.harvest.partition.machine import WorkerRun, harvest_worker, worker_run_id
from penstock.lifecycles.harvest.run.machine import R, Run, RunType
from penstock.lifecycles.harvest.tables import DATA_TABLES
from penstock.model.clock import parse_instant
from penstock.model.machine import Actor
from penstock.model.unit import replace
from tests.support.hand import Hand, typed_insert

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
RUN = UUID("11111111-1111-4111-8111-111111111111")
MOMENT = "'2026-11-02T12:00:00.000Z'"
EARLIER = "'2026-11-01T12:00:00.000Z'"


@pytest.fixture
def hand(ledger_url):
    """A person at a prompt, and a run with three workers that has just been created."""
    run = Run(
        run_id=RUN,
        feed="stones",
        run_type=RunType.FULL,
        expected_workers=3,
        started_at=NOW,
        window_to=NOW,
        watermark_before=parse_instant(EARLIER.strip("'")),
        expected_records=90,
    )
    with Ledger.open(ledger_url, MACHINES, create=True, data_tables=DATA_TABLES) as ledger:
        ledger.birth([run], actor=Actor.SCHEDULER, who="test")
        with Hand(ledger_url) as typed:
            yield typed


def set_run(hand: Hand, **columns: str) -> None:
    sets = ", ".join(f"{name} = {value}" for name, value in columns.items())
    hand.type(f"UPDATE run_metadata SET {sets}")


def refused(hand: Hand, check: str, **columns: str) -> None:
    with pytest.raises(hand.error) as caught:
        set_run(hand, **columns)
    assert check in str(caught.value)


def skipped(hand: Hand) -> None:
    set_run(hand, status="'workers_running'")
    set_run(hand, status="'consolidation_skipped'", completed_workers="2", failed_workers="1")


def test_a_run_that_is_created_has_no_workers_ended(hand):
    refused(hand, "created_is_untouched", completed_workers="1")


def test_consolidation_is_skipped_for_failures_alone(hand):
    set_run(hand, status="'workers_running'", completed_workers="3")
    refused(hand, "skipped_has_failures", status="'consolidation_skipped'")


def test_consolidation_needs_every_worker_or_force(hand):
    skipped(hand)
    refused(hand, "consolidated_is_whole", status="'consolidation_triggered'")
    set_run(hand, status="'consolidation_triggered'", forced_by="'ada'", forced_reason="'because'")


def test_a_completed_run_has_its_moment_and_its_watermark(hand):
    set_run(hand, status="'workers_running'", completed_workers="3")
    set_run(hand, status="'consolidation_triggered'")
    set_run(hand, status="'consolidating'")
    refused(hand, "completed_has_moment", status="'completed'", watermark_after=MOMENT)
    refused(hand, "watermark_when_completed", status="'completed'", completed_at=MOMENT)
    refused(hand, "watermark_when_completed", watermark_after=MOMENT)
    refused(hand, "completed_has_moment", completed_at=MOMENT)
    set_run(hand, status="'completed'", completed_at=MOMENT, watermark_after=MOMENT)


def test_a_forced_run_keeps_the_watermark_that_it_started_from(hand):
    skipped(hand)
    set_run(hand, status="'consolidation_triggered'", forced_by="'ada'", forced_reason="'because'")
    set_run(hand, status="'consolidating'")
    refused(hand, "forced_keeps_watermark", status="'completed'", completed_at=MOMENT, watermark_after=MOMENT)
    set_run(hand, status="'completed'", completed_at=MOMENT, watermark_after=EARLIER)


def test_force_has_a_reason_and_failure_has_one(hand):
    refused(hand, "forced_says_why", forced_by="'ada'")
    refused(hand, "failed_says_why", status="'failed'")


def test_no_edge_leads_past_the_workers(hand):
    for status in ("consolidating", "completed", "consolidation_skipped"):
        with pytest.raises(hand.error):
            set_run(hand, status=f"'{status}'")
    assert hand.type("SELECT status FROM run_metadata") == [(R.CREATED,)]


def test_a_partition_has_one_worker(hand):
    worker = WorkerRun(
        id=worker_run_id(RUN, "partition-0"), run_id=RUN, partition_id="partition-0", worker_id="w", started_at=NOW
    )
    hand.type(typed_insert(harvest_worker, worker))
    with pytest.raises(hand.error):
        hand.type(typed_insert(harvest_worker, worker))
    if hand.dialect == "postgresql":
        with pytest.raises(hand.error):
            hand.type(typed_insert(harvest_worker, replace(worker, id=UUID(int=7))))
