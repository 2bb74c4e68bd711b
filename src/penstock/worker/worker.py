"""The worker: keeps a lease, claims due units, and lets its holding and the committer do the rest.

One event loop; blocking work goes through the executor. A worker claims no more than it has slots for, so uncommitted
work is bounded while the database is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import structlog

from penstock.ledger.claim import Claimed, Levels
from penstock.ledger.gates.budget import HORIZON
from penstock.ledger.idle import Idle
from penstock.ledger.incarnation import LEASE_MS, Incarnation
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng, SystemClock
from penstock.model.errors import LedgerUnavailable, UsageError
from penstock.model.unit import Unit
from penstock.worker.committer import GroupCommitter
from penstock.worker.ear import Ear
from penstock.worker.executor import Executor, ThreadExecutor, unless
from penstock.worker.flow import AnyFlow, Io
from penstock.worker.gates import WorkerGates
from penstock.worker.held import Parts, WorkerCounts
from penstock.worker.holding import Holding
from penstock.worker.pace import Pace
from penstock.worker.patience import announce, pauses
from penstock.worker.peers import Peers
from penstock.worker.prices import prices_of
from penstock.worker.quarantine import Quarantine
from penstock.worker.reconcile import Reconciliation
from penstock.worker.rest import Rest
from penstock.worker.shares import Shares
from penstock.worker.watchdog import Watchdog

T = TypeVar("T")
log = structlog.get_logger()
_CLOSE_SECONDS = 0.5
_RENEW_AGAIN_SECONDS = 1.0
_TEND_AGAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How much a worker does at once, and how patient it is. The defaults suit production."""

    concurrency: int = 1_000
    slots: int = 4_000
    claim_at_once: int = 1_000
    lease_ms: int = LEASE_MS
    renew_seconds: float = LEASE_MS / 3000
    watch_seconds: float = 1.0
    #: The longest sleep; None where nobody else writes to the ledger (simulation).
    idle_seconds: float | None = 1.0
    stop_seconds: float = 8.0
    unknown_seconds: float = 30.0
    #: How often the disk and whoever holds the database back are looked at; None: never (simulation).
    place_seconds: float | None = 60.0


class Worker:
    """One incarnation after another: when its lease is lost, it drops what it held and starts under a fresh id."""

    def __init__(
        self,
        ledger: Ledger,
        flows: Sequence[AnyFlow],
        settings: WorkerSettings | None = None,
        *,
        executor: Executor | None = None,
        rng: Rng | None = None,
        config_version: str | None = None,
        watchdog: bool = False,
    ) -> None:
        """`watchdog`: the process is this worker's own, and is ended when a step blocks its event loop for too long."""
        self.ledger = ledger
        self._config_version = config_version
        self.flows = {flow.machine.name: flow for flow in flows}
        if len(self.flows) != len(flows):
            msg = "two flows drive the same machine; a worker has one flow for each"
            raise UsageError(msg)
        for flow in flows:
            flow.check()
        self.settings = settings or WorkerSettings()
        self.counts = WorkerCounts()
        self._executor = executor or ThreadExecutor()
        self._clock = ledger.clock
        self._rng = rng or ledger.rng
        #: The ledger's time when it was last learnt, and when that was (`elapsed`); None: it is this machine's.
        self._learnt: tuple[datetime, float] | None = None
        self._peers = Peers()
        self._stop = asyncio.Event()
        self._rest = Rest(self._clock, self.settings.idle_seconds)
        self._renewed = asyncio.Event()
        self._full = False
        self._shares = Shares(self.flows, self._clock)
        self._lease_end = math.inf
        self._reap_from = -math.inf
        self._claiming = asyncio.Lock()
        sizes = {"concurrency": self.settings.concurrency, "slots": self.settings.slots}
        self._pace = Pace(self._clock, self.counts, **sizes)
        self._holding: Holding | None = None
        # Steps that read much must not keep the lease from being renewed: they have threads of their own.
        self._readers: Executor = ThreadExecutor() if executor is None else executor
        # Nor must anything else: a renewal waits for no thread, and for no connection of the ledger's.
        self._renewer: Executor = ThreadExecutor(1) if executor is None else executor
        announce(ledger.database.presence)
        self._watchdog: Watchdog | None = None
        if watchdog and executor is None and isinstance(self._clock, SystemClock):
            self._watchdog = Watchdog(self._clock, self.settings.lease_ms, lambda: self._lease_end)
        self._ear: Ear | None = None
        if self.settings.idle_seconds is not None and isinstance(self._clock, SystemClock):
            self._ear = Ear(ledger.database, self._readers, self._clock, self._rng, self._rest)
        self._gates = WorkerGates(
            ledger.gates, self._executor, self._clock, self._rng, config_version, wake=self._rest.poke
        )
        self._io = Io(ledger, self._readers, self.now, self._rng, self._gates, self._stop.is_set)

    def now(self) -> datetime:
        """The ledger's time: as last learnt, and what has passed since, whatever this machine's clock is set to."""
        if self._learnt is None:
            return self._clock.now()
        then, at = self._learnt
        return then + timedelta(milliseconds=int((self._clock.elapsed() - at) * 1000))

    @property
    def busy(self) -> bool:
        """Whether it holds units: a step of one may be waiting for somebody's answer."""
        return self._holding is not None and bool(self._holding.held)

    def stop(self) -> None:
        """Finish or give back what is held, then let `run` return."""
        self._stop.set()

    def poke(self) -> None:
        """Look for work now, however long the worker meant to sleep; any thread may call it.

        Whatever this process writes through the worker's ledger does so by itself.
        """
        self._rest.ring()

    async def run(self) -> None:
        """Work until `stop`. Raises what cannot be worked around, such as a corrupt ledger."""
        for flow in self.flows.values():
            await flow.start()
        if self._watchdog is not None:
            self._watchdog.start()
        self._rest.begin()
        bell = self.ledger.database.bell
        bell.tell(self._rest.ring)
        try:
            while not self._stop.is_set():
                await self._incarnation()
        finally:
            bell.forget(self._rest.ring)
            for flow in self.flows.values():
                await flow.stop()
            if self._watchdog is not None:
                self._watchdog.stop()
            self._executor.close()
            self._readers.close()
            self._renewer.close()

    async def _incarnation(self) -> None:
        incarnation = self.ledger.incarnation(
            served=list(self.flows), lease_ms=self.settings.lease_ms, prices=prices_of(self.flows.values())
        )
        committer = GroupCommitter(incarnation, self._executor, self._rng)
        parts = Parts(
            incarnation=incarnation,
            committer=committer,
            preparer=self.ledger.preparer,
            executor=self._executor,
            flows=self.flows,
            io=self._io,
            gates=self._gates,
            clock=self._clock,
            counts=self.counts,
        )
        self._holding = holding = Holding(
            parts,
            concurrency=self.settings.concurrency,
            freed=self._rest.freed,
            leased=self._leased,
        )
        if self._watchdog is not None:
            self._watchdog.watch(incarnation, holding)
        self._lease_end = math.inf
        asked = self._clock.uptime()
        await unless(self._stop, self._register(incarnation))
        if self._stop.is_set():
            return
        self._lease_end = asked + self.settings.lease_ms
        log.info("worker.started", worker=incarnation.identity.id, machines=sorted(self.flows))
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        committing = asyncio.create_task(committer.run(), name="committer")
        quarantine = self._quarantine(incarnation, holding)
        claiming = asyncio.create_task(self._claims(incarnation, holding, quarantine), name="claims")
        leasing = asyncio.create_task(self._lease(incarnation, holding), name="lease")
        suspecting = asyncio.create_task(quarantine.run(), name="suspects")
        comparing = asyncio.create_task(self._compare(incarnation, holding), name="compare")
        watching = asyncio.create_task(self._watch(incarnation, holding), name="watch")
        looking = asyncio.create_task(self._look_around(incarnation), name="place")
        helpers = [stopping, committing, claiming, suspecting, leasing, comparing, watching, looking]
        if self._ear is not None:
            helpers.append(asyncio.create_task(self._ear.run(), name="ear"))
        try:
            done, _ = await asyncio.wait(helpers, return_when=asyncio.FIRST_COMPLETED)
            for helper in done - {stopping}:
                helper.result()  # a corrupt ledger, or our own bug: raised here
            if leasing not in done:
                claiming.cancel()
                suspecting.cancel()
                await self._wind_down(incarnation, holding, committer, committing)
        finally:
            holding.halt()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gates.close(), _CLOSE_SECONDS)
            everything = [*helpers, *holding.tasks]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
        if leasing in done:  # and no step goes on
            self._reap_from = self._clock.elapsed() + 2 * self.settings.renew_seconds
            await self._patiently(incarnation.survived)
        log.info("worker.stopped", worker=incarnation.identity.id, **dataclasses.asdict(self.counts))

    def _leased(self) -> bool:
        ending = self._watchdog is not None and self._watchdog.ending
        return self._clock.uptime() < self._lease_end and not ending

    async def _register(self, incarnation: Incarnation) -> None:
        asked = self._clock.elapsed()
        now = await self._patiently(functools.partial(incarnation.register, self._config_version))
        if now is not None:
            self._learn(now)
        if self._clock.elapsed() - asked > self.settings.renew_seconds:
            self._reap_from = self._clock.elapsed() + 2 * self.settings.renew_seconds  # there was an outage
        found = await self._quietly(incarnation.claims)
        self._peers.learn(found[1] if found else {})
        await self._patiently(self.ledger.gates.apply)
        await self._patiently(functools.partial(self.ledger.gates.reconfigured, self._config_version))

    async def _wind_down(
        self, incarnation: Incarnation, holding: Holding, committer: GroupCommitter, committing: asyncio.Task[None]
    ) -> None:
        """Finish what can be finished in time, give the rest back, and say goodbye."""
        deadline = self._clock.elapsed() + self.settings.stop_seconds

        def left() -> float:
            return max(0.1, deadline - self._clock.elapsed())

        with contextlib.suppress(LedgerUnavailable, TimeoutError):
            unstarted = [(unit, False) for unit in holding.unstarted()]
            await asyncio.wait_for(self._executor.run(incarnation.release, unstarted), left())
        if holding.tasks:
            await asyncio.wait(holding.tasks, timeout=left())
        committer.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(committing), left())
        with contextlib.suppress(LedgerUnavailable, TimeoutError):
            rest = [(held.unit, held.begun) for held in holding.held.values()]
            await asyncio.wait_for(self._executor.run(incarnation.release, rest), left())
            await asyncio.wait_for(self._executor.run(incarnation.retire), left())

    async def _patiently(self, work: Callable[[], T]) -> T | None:
        """Run ledger work, waiting while the database is away; None when told to stop meanwhile."""
        waits = pauses(self._rng)
        while True:
            try:
                return await self._executor.run(work)
            except LedgerUnavailable:
                await asyncio.sleep(next(waits))
            if self._stop.is_set():
                return None

    async def _watch(self, incarnation: Incarnation, holding: Holding) -> None:
        """Watch the deadlines of steps and of the lease, and other processes, whatever the database does meanwhile."""
        while True:
            await asyncio.sleep(self.settings.watch_seconds)
            holding.cancel_overdue()
            if self._peers.look(incarnation.identity.process):
                self._rest.poke()
            if self._clock.uptime() >= self._lease_end:
                # Others may take over now. What is finished is still offered for commit, and the fence decides,
                # but no step goes on that could have an effect.
                holding.halt()
            self._pace.measure()

    async def _look_around(self, incarnation: Incarnation) -> None:
        """Warn of a disk that fills up and of whoever holds the database back, before it is too late.

        And let the flows tend what is theirs: at the start, soon after it, when those that were started together have
        begun their work, and then as often.
        """
        pause = self.settings.place_seconds
        first = True
        while pause is not None:
            for finding in await self._quietly(incarnation.watch) or []:
                log.warning("ledger.place", subject=finding.subject, finding=finding.message)
            await self._tend()
            if first and pause > _TEND_AGAIN_SECONDS:
                await asyncio.sleep(_TEND_AGAIN_SECONDS)
                await self._tend()
            first = False
            await asyncio.sleep(pause)
        await self._stop.wait()

    async def _tend(self) -> None:
        for flow in self.flows.values():
            await self._quietly(functools.partial(flow.tend, self.ledger))

    async def _lease(self, incarnation: Incarnation, holding: Holding) -> None:
        """Renew the lease in time; returns when it was taken away."""
        pause = self.settings.renew_seconds
        while True:
            await asyncio.sleep(pause)
            asked = self._clock.uptime()
            try:
                now = await self._renewer.run(incarnation.renew)
            except LedgerUnavailable:
                pause = min(self.settings.renew_seconds, _RENEW_AGAIN_SECONDS)
                continue
            pause = self.settings.renew_seconds
            if now is None:
                log.warning("worker.lease_lost", worker=incarnation.identity.id, held=len(holding.held))
                self.counts.lost += len(holding.held)
                for machine, _ in holding.held:
                    self.counts.flows[machine].lost += 1
                return
            if asked >= self._lease_end:
                # This worker was cut off for longer than its lease, and so may the others have been: first they renew.
                self._reap_from = self._clock.elapsed() + 2 * self.settings.renew_seconds
            self._lease_end = asked + self.settings.lease_ms
            self._learn(now)
            self._renewed.set()

    async def _compare(self, incarnation: Incarnation, holding: Holding) -> None:
        """Compare with the ledger what is held and which gates fail; beside the renewals, which nothing may hold up."""
        reconciliation = Reconciliation()
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            interrupted = holding.interrupted()
            if interrupted:
                await self._patiently(functools.partial(incarnation.release, interrupted))
            holding.resume()
            await self._reconcile(incarnation, holding, reconciliation)
            await self._gates.look_around()

    async def _reconcile(self, incarnation: Incarnation, holding: Holding, reconciliation: Reconciliation) -> None:
        """Give back claims that nobody holds, and drop what is held without a claim."""
        try:
            claims, processes = await self._readers.run(incarnation.claims)
        except LedgerUnavailable:
            return
        self._peers.learn(processes)
        forgotten, unclaimed = reconciliation.compare(claims, holding.held)
        if forgotten:
            log.warning("worker.forgotten", worker=incarnation.identity.id, units=len(forgotten))
            await self._quietly(functools.partial(incarnation.release_forgotten, forgotten))
        if unclaimed:
            log.warning("worker.unclaimed", worker=incarnation.identity.id, units=len(unclaimed))
            holding.displace(unclaimed)

    def _learn(self, now: datetime) -> None:
        """What time it is in the ledger. A file has no other than this machine's, which may be set while we work."""
        if self.ledger.database.has_clock:
            self._learnt = (now, self._clock.elapsed())

    async def _claims(self, incarnation: Incarnation, holding: Holding, quarantine: Quarantine) -> None:
        """Claim while there is room and something is due; otherwise sleep until the ledger says."""
        settings = self.settings
        unknown_at = reaped_at = self._clock.elapsed()
        while await self._quietly(incarnation.unpark_known):
            """A thousand at a time, until all that waited for this program are back."""
        claimed_at = -math.inf
        while True:
            self._rest.look()
            room = self._pace.room(holding)
            if holding.held and room < min(settings.claim_at_once, settings.slots, settings.concurrency) / 2:
                self._rest.backlog = True
                # A budget that nobody asks for overflows: behind such gates a little is claimed meanwhile.
                late = claimed_at + HORIZON - self._clock.elapsed() if incarnation.metered and room > 0 else None
                if late is None or late > 0:
                    await self._rest.called(late)
                    continue
            claimed_at = self._clock.elapsed()
            if self._peers.dead or self._clock.elapsed() - reaped_at >= settings.watch_seconds:
                reaped_at = self._clock.elapsed()
                await self._reap(incarnation)
                quarantine.poke()
            asked = min(room, settings.claim_at_once)
            if await self._claim(incarnation, holding, asked):
                continue
            # Where no call could leave, what is due behind a budget waits for a step to end.
            # So it does where a flow holds as many as it takes.
            self._rest.backlog = self._full or holding.starts(self._pace.rate) <= 0
            over = False
            while not over:
                if self._clock.elapsed() - unknown_at >= settings.unknown_seconds:
                    unknown_at = self._clock.elapsed()
                    await self._quietly(incarnation.park_unknown)
                    await self._quietly(incarnation.unpark_known)
                idle = await self._ask(incarnation, quarantine)
                if idle is not None and idle.lease is not None and idle.lease <= 0:
                    reaped_at = -math.inf
                over = await self._rest.sleep(idle)

    async def _ask(self, incarnation: Incarnation, quarantine: Quarantine) -> Idle | None:
        """When the ledger next has something to do; suspects that are due have it at once."""
        self._rest.ask()
        idle = await self._quietly(incarnation.idle)
        if idle is None:
            return None
        self._learn(idle.now)
        if idle.suspect is not None and idle.suspect <= 0:
            quarantine.poke()
        return idle

    def _wants(self, holding: Holding, shares: Mapping[str, int]) -> dict[str, int]:
        """How many units to claim of each machine: its share, as far as its flow takes so many at once."""
        limits = {name: self.flows[name].at_once for name in shares}
        limited = any(most is not None for most in limits.values())
        held = Counter(machine for machine, _ in holding.held) if limited else Counter()
        left = {name: math.inf if most is None else most - held[name] for name, most in limits.items()}
        self._full = any(room <= 0 for room in left.values())
        return {name: int(min(share, max(0, left[name]))) for name, share in shares.items()}

    async def _claim(self, incarnation: Incarnation, holding: Holding, room: int) -> int:
        machine_of = {flow.machine.unit: name for name, flow in self.flows.items()}
        for shares in self._shares.of(room):
            wants, starts = self._wants(holding, shares), holding.starts(self._pace.rate)
            taken = await self._take(incarnation, holding, functools.partial(incarnation.take, wants, starts))
            self._shares.noted(wants, {machine_of[type(unit)] for unit in taken})
            if taken:
                return len(taken)
        return 0

    async def _take(self, incarnation: Incarnation, holding: Holding, claim: Callable[[], Claimed]) -> list[Unit]:
        """Claim, and begin; one claim at a time, so that one whose answer was lost is known from one under way."""
        async with self._claiming:
            try:
                claimed = await self._executor.run(claim)
            except LedgerUnavailable:
                # The claim may have landed without our hearing of it: what is ours in the ledger is taken up.
                claimed = await self._patiently(lambda: incarnation.retake(set(holding.held))) or Claimed([], {})
            self.counts.claimed += len(claimed.units)
            self._rest.worthwhile |= bool(claimed.units)
            holding.take(claimed)
            return claimed.units

    def _quarantine(self, incarnation: Incarnation, holding: Holding) -> Quarantine:
        async def claim(room: int, levels: Levels) -> int:
            claimed = 0
            for name in self.flows:
                if claimed < room:
                    n = self._wants(holding, {name: room - claimed})[name]
                    take = functools.partial(incarnation.take, {name: n}, n, levels)
                    claimed += len(await self._take(incarnation, holding, take))
            return claimed

        look = functools.partial(self._quietly, incarnation.suspected)
        return Quarantine(holding, self._clock, look, claim)

    async def _reap(self, incarnation: Incarnation) -> None:
        # Who is cut off knows of nobody whether they are: first all have time to renew.
        if self._clock.elapsed() < self._reap_from or self._clock.uptime() >= self._lease_end:
            return
        freed = await self._quietly(functools.partial(incarnation.reap, self._peers.dead.copy()))
        if freed is not None:
            self._peers.reaped()
        if freed:
            self.counts.reaped += freed
            log.warning("worker.reaped", units=freed)

    async def _quietly(self, work: Callable[[], T]) -> T | None:
        try:
            return await self._executor.run(work)
        except LedgerUnavailable:
            return None
