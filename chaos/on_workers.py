"""What is done to workers: kills, ordinary restarts, and stops that last longer than the lease."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

from chaos.field import Field
from chaos.parts import Case, Fault, Worker
from chaos.rows import Row

_BEYOND = 5.0
"""Seconds beyond the lease within which what a killed worker held is to be done elsewhere."""


def kills(case: Case) -> Iterator[Row]:
    """Kill the only worker twice while it holds everything; its supervisor starts another at once."""
    units, lease = case.pick((1_000, 30), (120, 3))
    with Field(case, lease=lease) as field:
        field.birth(units, before=(200, 1_500), answer=(200, 1_500))
        field.start_and_wait(1)
        field.pause(0.7)
        first = field.strike(field.living, signal.SIGKILL)
        # The second one strikes when much of what the first one held has been taken up again.
        field.wait(lambda: _held_again(field, first), lease + 30)
        field.strike(field.living, signal.SIGKILL)
        left = field.books.open()
        drained = field.drain(case.pick(180, 20))
        after = f"{time.time() - field.faults[-1].wall:.0f} s after the second kill"
        note = f"all done {after}" if drained is not None else f"{field.books.open()} of {left} not done {after}"
        yield field.row(1, "2 SIGKILLs", field.since_faults(), within=lease + _BEYOND, note=note)


def _held_again(field: Field, fault: Fault) -> bool:
    held = field.held_by(worker.pid for worker in field.living)
    return len(held & fault.units) >= len(fault.units) / 10 > 0


def storm(case: Case) -> Iterator[Row]:
    """Kill a worker picked by chance, again and again, each replaced at once, while thousands are to be done."""
    yield _storm(case, case.pick(5, 3))


def storm_at_default_lease(case: Case) -> Iterator[Row]:
    """The same at the lease that everybody has who sets no other."""
    if case.quick:
        yield Row(case.scenario, case.database, not_run="the default lease is nothing for small sizes")
    else:
        yield _storm(case, 30)


def _storm(case: Case, lease: int) -> Row:
    units, crowd, kills = case.pick((5_000, 4, 60), (300, 3, 8))
    with Field(case, lease=lease, concurrency=50) as field:
        field.birth(units, before=(100, 1_500), answer=(100, 1_500))
        field.start_and_wait(crowd)
        for _ in range(kills):
            field.pause(field.dice.uniform(0.3, 1.2))
            # All but one are at work before the next is struck, on a machine of any speed: else nobody is "elsewhere".
            ready = field.until(lambda: _ready(field, crowd - 1), 120, "the others are at work")
            field.strike([field.dice.choice(ready)], signal.SIGKILL)
        field.drain(case.pick(180, 20))
        made = f"{len(field.faults)} SIGKILLs"
        return field.row(crowd, made, field.since_faults(), within=lease + _BEYOND)


def _ready(field: Field, least: int) -> list[Worker]:
    """Those that have registered, where they are so many; else none."""
    found = [worker for worker in field.living if worker.said("worker.started")]
    return found if len(found) >= least else []


def restarts(case: Case) -> Iterator[Row]:
    """Restart the worker twice in the ordinary way, in the midst of long steps."""
    yield from _restarts(case, signal.SIGTERM)


def hangups(case: Case) -> Iterator[Row]:
    """Have the worker read its configuration again twice, in the midst of long steps."""
    yield from _restarts(case, signal.SIGHUP)


def _restarts(case: Case, number: signal.Signals) -> Iterator[Row]:
    units, step, stop_seconds = case.pick((465, 20, 8.0), (100, 3, 1.0))
    lease = case.pick(30, 4)
    spans = {"before": (step * 900, step * 1_000), "answer": (0, 200)}
    calm = _calm(case, lease, units, stop_seconds, spans)
    with Field(case, lease=lease, stop_seconds=stop_seconds) as field:
        field.birth(units, **spans)  # type: ignore[arg-type]
        (worker,) = field.start_and_wait(1)
        began = time.monotonic()
        for _ in range(2):
            field.until(lambda: field.books.count("claimed_by IS NOT NULL") >= field.books.open() * 0.9, 120, "held")
            field.pause(step / 4)
            worker = _again(field, worker, number)
        field.drain(case.pick(240, 30))
        took = time.monotonic() - began
        allowed = calm + 2 * (step + stop_seconds + 2.5)
        row = field.row(1, f"2 {number.name}s", field.since_faults())
        row.note = f"{'not all' if row.stuck else 'all'} done in {took:.0f} s, {calm:.0f} s without"
        if took > allowed and not row.stuck:
            row.misses.append(f"took {took:.0f} s, at most {allowed:.0f} wanted")
        yield row


def _calm(case: Case, lease: int, units: int, stop_seconds: float, spans: dict[str, tuple[int, int]]) -> float:
    """How long the same takes when nobody disturbs it."""
    with Field(case, lease=lease, stop_seconds=stop_seconds, name="calm") as field:
        field.birth(units, **spans)  # type: ignore[arg-type]
        field.start_and_wait(1)
        return field.drain(120) or 120.0


def _again(field: Field, worker: Worker, number: signal.Signals) -> Worker:
    """Send the signal and wait for the worker that comes after it."""
    before = len(worker.said("worker.started"))
    field.strike([worker], number)
    if number is signal.SIGTERM:
        field.until(lambda: not worker.alive, 60, "the worker goes")
        field.supervise()
        worker = field.workers[-1]
        before = 0
    field.until(lambda: len(worker.said("worker.started")) > before, 60, "the next worker starts")
    return worker


def stops(case: Case) -> Iterator[Row]:
    """Stop a worker for longer than its lease and let it go on."""
    units, lease, times, crowd = case.pick((3_000, 3, 8, 3), (150, 3, 2, 2))
    with Field(case, lease=lease, concurrency=case.pick(100, 20)) as field:
        field.birth(units, before=(100, 2_000), answer=(100, 1_000))
        field.start_and_wait(crowd)
        for _ in range(times):
            field.pause(1.0)
            (victim,) = field.dice.sample(field.living, 1)
            field.strike([victim], signal.SIGSTOP)
            field.pause(lease * 1.5 + 0.5)
            victim.process.send_signal(signal.SIGCONT)
            field.pause(0.5)
        field.drain(case.pick(180, 40))
        stale = stale_calls(field)
        note = f"{stale} calls went out after somebody else had taken over"
        # The window is the provider's to close: docs say which protection it must offer.
        yield field.row(crowd, f"{times} SIGSTOPs", field.since_faults(), note=note, twice_allowed=True)


def stale_calls(field: Field) -> int:
    """Effects that came under a claim after the provider had heard of a later claim of the same parcel."""
    newest: dict[str, int] = {}
    stale = 0
    for line in field.provider_lines():
        if line["what"] == "effect" and line["version"] < newest.get(line["key"], 0):
            stale += 1
        newest[line["key"]] = max(newest.get(line["key"], 0), line["version"])
    return stale
