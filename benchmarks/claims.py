"""Claim latency: does it depend on how much is in the table, or on what waits behind closed gates?

Three ledgers: one of a hundred thousand rows, one of five million, and one of a hundred thousand with another million
behind two hundred closed gates; all rows are due. From each in turn a hundred units are claimed, so that noise on the
machine meets all three alike. Each time twice: as a worker does it (claimed and committed, then released), and the
statement alone, rolled back, where no commit's wait for the disk hides a growth.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NoReturn

from benchmarks import noop
from benchmarks.peers import common
from penstock.ledger.claim import Claims
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.triggers import make_triggers
from penstock.ledger.store.database import Cursor

CLAIMED = 100
GATES = 200
AT_ONCE = 20
STATES = ("small", "large", "closed")


class _RolledBack(Exception):
    """Takes a transaction back."""


class Bed:
    """One ledger to claim from, and how long it took each time, in milliseconds."""

    def __init__(self, ledger: Ledger) -> None:
        self._database = ledger.database
        self._session = ledger.incarnation()
        self._session.register()
        me = self._session.identity.id
        self._claims = Claims(ledger.database, self._session.served, ledger.clock, me, ledger.gates)
        self.claims: list[float] = []
        self.statements: list[float] = []

    def measure(self, times: int) -> None:
        self.claims += [self._claim() for _ in range(times)]
        self.statements += [self._statement() for _ in range(times)]

    def forget(self) -> None:
        """What was measured so far was warm-up."""
        self.claims, self.statements = [], []

    def medians(self) -> dict[str, float]:
        both = {"claim_ms": self.claims, "statement_ms": self.statements}
        return {name: round(statistics.median(measured), 3) for name, measured in both.items()}

    def _claim(self) -> float:
        started = time.perf_counter()
        units = self._session.claim({noop.MACHINE.name: CLAIMED})
        seconds = time.perf_counter() - started
        common.require(len(units), CLAIMED)
        self._session.release([(unit, False) for unit in units])
        return seconds * 1000

    def _statement(self) -> float:
        seconds = 0.0

        def work(cursor: Cursor) -> NoReturn:
            nonlocal seconds
            started = time.perf_counter()
            rows = self._claims.rows(cursor, noop.MACHINE.name, CLAIMED)
            seconds = time.perf_counter() - started
            common.require(len(rows), CLAIMED)
            raise _RolledBack

        try:
            self._database.write(work)
        except _RolledBack:
            return seconds * 1000


@contextmanager
def without_births(ledger: Ledger) -> Iterator[None]:
    """The trigger of births is away: millions of history rows would take longer than the rest.

    A claim reads none of them. The guard, which a claim does pass, stays.
    """
    database = ledger.database
    on = " ON noop" if database.dialect == "postgresql" else ""
    database.write(lambda cursor: cursor.run(f"DROP TRIGGER penstock_noop_birth{on}"))
    yield
    database.write(lambda cursor: make_triggers(database, cursor, [noop.MACHINE]))


def fill(url: str, count: int, *, start: int = 0, gates: int = 0) -> None:
    """Due units, in closed gates or in none."""
    with Ledger.open(url, [noop.MACHINE], create=True) as ledger, without_births(ledger):
        if gates:
            ledger.database.write(lambda cursor: _close_gates(cursor, gates))
        noop.fill(ledger, count, start=start, gates=gates)


def _close_gates(cursor: Cursor, gates: int) -> None:
    for number in range(gates):
        cursor.run(
            "INSERT INTO gate (gate_id, closed_until) VALUES (:gate, '2999-01-01T00:00:00.000Z')",
            gate=noop.gate_name(number),
        )


def main() -> None:
    """Fill the three, measure them in turn and print the result."""
    parser = noop.arguments("claims", 5_000_000)
    parser.add_argument("--small", type=int, default=100_000, help="rows to compare with (default %(default)s)")
    parser.add_argument("--closed", type=int, default=1_000_000, help="due rows behind closed gates")
    parser.add_argument("--times", type=int, default=200, help="claims per median (default %(default)s)")
    options = parser.parse_args()
    with ExitStack() as stack:
        urls = {name: stack.enter_context(noop.scratch(options.url, f"claims_{name}")) for name in STATES}
        fill(urls["small"], options.small)
        fill(urls["large"], options.items)
        fill(urls["closed"], options.small)
        fill(urls["closed"], options.closed, start=options.small, gates=GATES)
        for url in urls.values():
            noop.settle(url)
        ledgers = {n: stack.enter_context(Ledger.open(url, [noop.MACHINE])) for n, url in urls.items()}
        beds = {name: Bed(ledger) for name, ledger in ledgers.items()}
        for turn in range(options.times // AT_ONCE + 1):
            for bed in beds.values():
                bed.measure(AT_ONCE)
                if turn == 0:
                    bed.forget()
    line = {
        "database": noop.database_of(options.url),
        "claimed": CLAIMED,
        "gates": GATES,
        "rows": {"small": options.small, "large": options.items, "closed": options.closed},
        **{name: bed.medians() for name, bed in beds.items()},
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
