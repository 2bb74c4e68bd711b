"""One poisonous parcel among thousands: what it costs the others, and who is parked for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from chaos import launch, parcels
from chaos.field import Field
from chaos.parts import Case, Fault
from chaos.rows import Row

KINDS = {
    "exit": "os._exit in its step",
    "kill": "SIGKILL to its own process",
    "segfault": "a read of address 0",
    "exception": "GeneratorExit from its step",
    "spin": "an endless loop in its step",
    "decide": "a decision that blocks",
    "interpreter": "a call that keeps the interpreter's lock",
    "memory": "asking for memory until there is none",
}
DEFAULT_LEASE = 30
_MEMORY = 2 << 30
_WORKERS = 2


def poisonous(kind: str, *, default_lease: bool = False) -> Callable[[Case], Iterator[Row]]:
    """The scenario of one kind, at a short lease or at the default one."""

    def scenario(case: Case) -> Iterator[Row]:
        if default_lease and case.quick:
            yield Row(case.scenario, case.database, not_run="the default lease is nothing for small sizes")
            return
        lease = DEFAULT_LEASE if default_lease else case.pick(5, 3)
        yield _poisoned(case, kind, lease, _calm(case, lease))

    return scenario


def _field(case: Case, lease: int, name: str) -> Field:
    return Field(case, lease=lease, environment={launch.MEMORY: str(_MEMORY)}, name=name)


def _calm(case: Case, lease: int) -> float:
    """How long the others take without poison."""
    with _field(case, lease, "calm") as field:
        _birth(field, None)
        began = time.monotonic()
        field.start(_WORKERS)
        field.drain(120)
        return time.monotonic() - began


def _birth(field: Field, kind: str | None) -> None:
    count = field.case.pick(5_000, 200)
    field.birth(count, before=(50, 1_000), answer=(50, 1_000), poison=kind)


def _poisoned(case: Case, kind: str, lease: int, calm: float) -> Row:
    with _field(case, lease, "poisoned") as field:
        _birth(field, kind)
        (guilty,) = field.guilty
        began = time.monotonic()
        field.start(_WORKERS)
        others = "status NOT IN ('SENT', 'FAILED') AND parked_at IS NULL AND unit_id <> '" + guilty + "'"

        def done() -> bool:
            _take_notes(field)
            return field.books.count(others) == 0

        patience = case.pick(60 + 6 * lease, 20)
        cost = time.monotonic() - began - calm if field.wait(done, patience) else None
        # The others are done; the one at fault has a little longer to be found out.
        field.wait(lambda: _take_notes(field) or field.books.open() == 0, case.pick(60 + 3 * lease, 15))
        row = field.row(_WORKERS, f"{len(field.faults)} times {KINDS[kind]}", field.since_faults())
        parked = field.books.parked()
        told = "it was parked" if guilty in parked else "it was not parked"
        row.note = f"the others took {max(0.0, cost):.0f} s longer, {told}" if cost is not None else told
        if lease == DEFAULT_LEASE and (cost is None or cost > 60):
            row.misses.append("the others are to lose less than a minute")
        return row


def _take_notes(field: Field) -> bool:
    """Every line that a poisonous step wrote is a fault: whatever its process held was struck. Always False."""
    for mono, wall, pid, _ in parcels.notes(field.notes)[len(field.faults) :]:
        field.faults.append(Fault(wall, mono, field.held_by([pid]) - field.guilty))
    return False
