"""Price rules on virtual time: a real worker over a real ledger, and a shop in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from penstock.app.app import App
from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.rules import lifecycle, operations, undo
from penstock.lifecycles.rules.catalogue import read_catalogue
from penstock.lifecycles.rules.definition import read_rule
from penstock.lifecycles.rules.run.flow import Runs
from penstock.lifecycles.rules.run.machine import R, Run, rule_run
from penstock.lifecycles.rules.settings import AccountSettings, RulesSettings, gate_of, schedule_of
from penstock.lifecycles.rules.shop import Configured
from penstock.lifecycles.rules.tables import rule as rules_table
from penstock.lifecycles.rules.target.flow import Targets
from penstock.lifecycles.rules.target.machine import T, Target, rule_target
from penstock.model.clock import Rng, VirtualClock, instant
from penstock.model.limits import GateLimits, Limit
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.model.simulation import simulate
from penstock.model.unit import Ref
from penstock.operations.carry import carry_out, make_plan
from penstock.operations.declare import Ask, Operation
from penstock.operations.reader import Reader
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import AnyFlow, Io
from penstock.worker.job import JobResult
from penstock.worker.schedule import Schedules
from penstock.worker.schedule_unit import Schedule
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.copies import opened
from tests.support.price_shop import CURRENCY, PriceShop

START = datetime(2026, 11, 2, 12, tzinfo=UTC)
ACCOUNT = "shop"
GATE = gate_of(ACCOUNT)
WHO = "ada"
_APP = App(lifecycle)
MACHINES, TABLES, VIEWS, PAST = _APP.machines, _APP.data.tables, _APP.data.views, _APP.past
_FOREVER = 1e9
CUT: Mapping[str, Any] = {"selector": {"everything": True}, "transform": {"percent": "-10"}}


def open_ledger(url: str, clock: VirtualClock, seed: int = 7) -> Ledger:
    """The ledger, or a new one; it may be a copy of one that was made before."""
    return opened(url, MACHINES, clock=clock, rng=Rng(seed), data_tables=TABLES, views=VIEWS)


class Prices:
    """One ledger and one shop, with a rule that cuts every price by a tenth."""

    def __init__(
        self, url: str, shop: PriceShop, *, account: str = ACCOUNT, seed: int = 7, at_once: int = 250, **settings: Any
    ) -> None:
        self.time = VirtualClock(START)
        self.ledger = open_ledger(url, self.time, seed)
        self.shop, self.account, self._seed = shop, account, seed
        shop.clock = self.time
        own = AccountSettings(file=Path("prices.csv"), currency=CURRENCY)
        self.settings = RulesSettings(accounts={account: own}, **settings)
        self.accounts = {account: Configured(account, shop, gate_of(account), at_once)}
        self.rule("cut", **CUT)
        schedule = Schedule(name=schedule_of(account), job="read", every="365d", settings={"account": account})
        self.ledger.birth([schedule], actor=Actor.SCHEDULER, who="test", if_absent=True)
        self.read_catalogue()

    def close(self) -> None:
        self.ledger.close()

    # What people do.

    def rule(self, name: str, **document: Any) -> None:
        made = read_rule({"name": name, "account": self.account, "currency": CURRENCY, **document})
        row = {
            "tenant_id": "default",
            "name": name,
            "version": 1,
            "project_id": "default",
            "account": self.account,
            "currency": CURRENCY,
            "priority": made.priority,
            "active": True,
            "description": "",
            "definition": made.document(),
            "digest": made.digest,
            "source": "test",
            "current": True,
            "created_at": self.time.now(),
            "created_by": WHO,
        }
        self.ledger.write([Write(rules_table, [row])])

    def read_catalogue(self) -> None:
        self.ledger.nudge([Ref("schedule", schedule_of(self.account))])
        self.work(1)

    def start(self, rule: str = "cut", *, queue: bool = True, **columns: Any) -> UUID:
        """Have a run made, and queued as soon as its preview is complete."""
        run_id = UUID(int=int(self.ledger.rng.token(), 16))
        run = Run(
            id=run_id,
            account=self.account,
            currency=CURRENCY,
            rule_name=rule,
            rule_version=1,
            metadata={"actor": WHO, "correlationId": "c-1", "source": "test"},
            created_at=self.time.now(),
            queue_when_ready=queue,
            due_at=self.time.now(),
            **columns,
        )
        self.ledger.birth([run], actor=Actor.API, who=WHO)
        return run_id

    def apply(self, rule: str = "cut", *, seconds: float = 60, **columns: Any) -> UUID:
        """Have a run made, and let time pass."""
        run_id = self.start(rule, **columns)
        self.work(seconds)
        return run_id

    def do(self, operation: Operation[Any], run_id: UUID, reason: str = "because", **asked: Any) -> None:
        """Plan an operation on a run, and carry it out."""
        reader = Reader(self.ledger.database, self.ledger.machines.values())
        ask = Ask(reader, self.settings, self.time.now(), WHO, reason)
        planned = make_plan(operation, ask, operation.parameters(run=str(run_id), **asked), owner="rules", version="1")
        carry_out(self.ledger, ask, planned)

    def retry(self, run_id: UUID, *variants: str) -> None:
        """Have failed targets tried again: these, or all."""
        self.do(operations.retry, run_id, target=variants)

    def roll_back(self, run_id: UUID, *variants: str, leave: Sequence[str] = (), seconds: float = 60) -> Run:
        """Have a run rolled back, whole or by target, and let time pass. The run that does it."""
        self.do(undo.rollback, run_id, target=variants, leave=tuple(leave))
        self.work(seconds)
        return max((run for run in self.runs() if run.of_run_id == run_id), key=lambda run: run.created_at)

    def slowly(self) -> None:
        """One product a second from now on: what a person does comes in between."""
        self.ledger.gates.providers = [GateLimits(gate_of(self.account), (Limit("calls", 1.0, 1.0),))]

    # Time.

    def work(self, seconds: float = 60, *, watch: float | None = None) -> None:
        """Let a worker run for so much virtual time."""
        flows: list[AnyFlow] = [
            Runs(self.settings, self.accounts),
            Targets(self.settings, self.accounts),
            Schedules({"read": self._read}),
        ]
        chosen = WorkerSettings(
            lease_ms=4_000 * 86_400_000,
            renew_seconds=_FOREVER,
            idle_seconds=None,
            watch_seconds=watch or max(1.0, seconds / 60),
            unknown_seconds=_FOREVER,
            place_seconds=None,
        )

        async def main() -> None:
            worker = Worker(self.ledger, flows, chosen, executor=InlineExecutor(), rng=Rng(self._seed))
            running = asyncio.create_task(worker.run())
            ended, _ = await asyncio.wait([running], timeout=seconds)
            worker.stop()
            await running
            assert not ended, "the worker stopped by itself"

        simulate(self.time, main)

    def hours(self, hours: float) -> None:
        self.work(hours * 3600)

    async def _read(self, schedule: Schedule, io: Io) -> JobResult:
        return await read_catalogue(self.accounts[self.account], io)

    # What came of it.

    def run(self, run_id: UUID) -> Any:
        (found,) = self.ledger.get_many(rule_run, [str(run_id)])
        return found

    def runs(self) -> list[Run]:
        ids = [row[0] for row in self.rows("SELECT unit_id FROM rule_run")]
        return sorted(self.ledger.get_many(rule_run, ids), key=lambda run: run.created_at)

    def targets(self, run_id: UUID) -> list[Target]:
        rows = self.rows("SELECT unit_id, rule_run_id FROM rule_target")
        ids = [unit_id for unit_id, run in rows if str(run) == str(run_id)]
        return sorted(self.ledger.get_many(rule_target, ids), key=lambda target: target.id)

    def target(self, run_id: UUID, variant: str) -> Target:
        (found,) = self.ledger.get_many(rule_target, [target_ref(run_id, variant).unit_id])
        assert isinstance(found, Target)
        return found

    def ended(self, run_id: UUID) -> dict[str, str]:
        """Variant to state, and its cause where it has failed."""
        return {t.id: str(t.status) if t.cause is None else f"{t.status} {t.cause}" for t in self.targets(run_id)}

    def rows(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **given)])

    def edges(self, machine: str, unit_id: str) -> list[str]:
        """The states that a unit went through."""
        found = self.rows(
            "SELECT from_status, to_status FROM transition_log WHERE machine = :m AND unit_id = :u ORDER BY seq",
            m=machine,
            u=unit_id,
        )
        return [target for source, target in found if source != target]

    def hands(self, machine: str, unit_id: str, to: str) -> list[str]:
        """Who moved a unit to a state."""
        sql = (
            "SELECT actor FROM transition_log WHERE machine = :m AND unit_id = :u AND to_status = :to"
            " AND (from_status IS NULL OR from_status <> to_status) ORDER BY seq"
        )
        return [row[0] for row in self.rows(sql, m=machine, u=unit_id, to=to)]

    def events(self, kind: str) -> list[tuple[str, str | None]]:
        """(key, severity) of the events of one kind."""
        sql = "SELECT event_key, severity FROM event_log WHERE event_type = :kind ORDER BY event_key"
        return [(key, severity) for key, severity in self.rows(sql, kind=kind)]

    def gate_closed_until(self) -> datetime | None:
        ((until,),) = self.rows("SELECT closed_until FROM gate WHERE gate_id = :gate", gate=gate_of(self.account))
        return instant(until) if until is not None else None

    def books(self) -> None:
        """Every run that has ended balances, nothing is in doubt or parked, and the ledger is in order."""
        assert self.shop.wrong == []
        in_order(self.ledger, [(run, self.targets(run.id)) for run in self.runs()])


def in_order(ledger: Ledger, runs: Sequence[tuple[Run, Sequence[Target]]]) -> None:
    """The books of these runs balance, every history is legal, and the doctor finds nothing."""
    for run, targets in runs:
        _balanced(run, targets)
    findings = examine(ledger.database, ledger.machines)
    assert [f for f in findings if f.severity == "error"] == []
    for machine in (rule_run, rule_target):
        sql = "SELECT DISTINCT from_status, to_status FROM transition_log WHERE machine = :m"
        pairs = ledger.read(lambda cursor, sql=sql, m=machine.name: [tuple(r) for r in cursor.rows(sql, m=m)])  # type: ignore[misc]
        assert {(a, b) for a, b in pairs if a is not None and a != b} <= set(machine.pairs)
        assert {b for a, b in pairs if a is None} <= set(machine.births)


def _balanced(run: Run, targets: Sequence[Target]) -> None:
    counts = Counter(t.status for t in targets)
    included = [t for t in targets if t.included]
    assert (run.applied_count, run.failed_count, run.rolled_back_count) == (
        counts[T.APPLIED],
        counts[T.FAILED],
        counts[T.ROLLED_BACK],
    )
    if run.previewed_at is not None:
        assert (run.target_count, run.excluded_count) == (len(included), len(targets) - len(included))
    if run.status in (R.APPLIED, R.PARTIAL, R.FAILED, R.ROLLED_BACK):
        assert run.applied_count + run.failed_count + run.rolled_back_count == run.target_count
        assert [t.id for t in included if t.in_doubt_since is not None or t.doubts or t.parked_at is not None] == []
        assert run.parked_at is None
        assert all(t.status is T.PREVIEW for t in targets if not t.included)


def target_ref(run_id: UUID, variant: str) -> Ref:
    return Ref("rule_target", f"{run_id}/{variant}")


@contextmanager
def prices(url: str, shop: PriceShop, **options: Any) -> Iterator[Prices]:
    """A bench whose books balance when the test is over."""
    made = Prices(url, shop, **options)
    try:
        yield made
        made.books()
    finally:
        made.close()


DAY = timedelta(days=1)
