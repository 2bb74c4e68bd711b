"""Claims and the number of gates: what do a claim and the idle question cost with ten, a thousand, ten thousand?

Five situations, each in ledgers that differ in the number of gates alone:

- open: every gate is open and has units that are due;
- metered: the same, and every gate has a budget with room, a place is taken for every unit;
- closed: five gates are open, the others are closed, with a million due units behind them;
- empty: units are due behind five gates, nobody waits behind the others;
- later: the same, but behind each of the others a unit waits for tomorrow.

From the ledgers of a situation a hundred units are claimed in turn; then the worker asks when it next has something to
do, and the units go back. A claim is measured as a worker makes it, commit included, and what it does before its commit
by itself: no wait for the disk hides a growth.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack
from typing import Any

from benchmarks import noop
from benchmarks.claims import CLAIMED, without_births
from benchmarks.peers import common
from penstock.ledger.claim import Claims
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor

COUNTS = (10, 1_000, 10_000)
SITUATIONS = ("open", "metered", "closed", "empty", "later")
FEW = 5
AT_ONCE = 10
_WANTED = {noop.MACHINE.name: CLAIMED}


class TimedClaims(Claims):
    """Claims that know how long the last one took before its commit."""

    seconds = 0.0

    def within(self, *about: Any) -> Any:
        started = time.perf_counter()
        try:
            return super().within(*about)
        finally:
            self.seconds = time.perf_counter() - started


class Bed:
    """One ledger to claim from, and how long it took each time, in milliseconds."""

    def __init__(self, ledger: Ledger) -> None:
        self._session = ledger.incarnation()
        self._session.register()
        me = self._session.identity.id
        self._claims = TimedClaims(ledger.database, self._session.served, ledger.clock, me, ledger.gates)
        self.measured: dict[str, list[float]] = {"claim_ms": [], "within_ms": [], "idle_ms": []}

    def measure(self, times: int) -> None:
        for _ in range(times):
            started = time.perf_counter()
            units = self._claims.take(_WANTED, None, None).units
            claimed = time.perf_counter()
            self._session.idle()
            self.measured["idle_ms"].append((time.perf_counter() - claimed) * 1000)
            self.measured["claim_ms"].append((claimed - started) * 1000)
            self.measured["within_ms"].append(self._claims.seconds * 1000)
            common.require(len(units), CLAIMED)
            self._session.release([(unit, False) for unit in units])

    def forget(self) -> None:
        """What was measured so far was warm-up."""
        for found in self.measured.values():
            found.clear()

    def medians(self) -> dict[str, float]:
        return {name: round(statistics.median(found), 3) for name, found in self.measured.items()}


def fill(url: str, situation: str, gates: int, items: int, closed: int) -> None:
    """A ledger with so many gates in one of the situations, with so many units behind open ones and behind closed."""
    with Ledger.open(url, [noop.MACHINE], create=True) as ledger:
        ledger.database.write(lambda cursor: _gates(cursor, situation, gates))
        with without_births(ledger):
            if situation in ("open", "metered"):
                noop.fill(ledger, items, gates=gates)
                return
            rows = items if situation == "closed" else CLAIMED
            noop.fill(ledger, rows, gates=FEW)
            if situation == "closed":
                noop.fill(ledger, closed, start=rows, gates=gates - FEW, first_gate=FEW)
            if situation == "later":
                noop.fill(ledger, gates - FEW, start=rows, gates=gates - FEW, first_gate=FEW, days=2)


def _gates(cursor: Cursor, situation: str, gates: int) -> None:
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {gates - 1})"
    name = f"'{noop.gate_name('')}' || i"
    cursor.run(f"{numbers} INSERT INTO gate (gate_id) SELECT {name} FROM n")
    if situation == "closed":
        few = ", ".join(f"'{noop.gate_name(i)}'" for i in range(FEW))
        until = "'2999-01-01T00:00:00.000Z'"
        cursor.run(f"UPDATE gate SET closed_until = {until} WHERE gate_id NOT IN ('none', {few})")
    if situation == "metered":
        cursor.run("UPDATE gate SET metered = true WHERE gate_id <> 'none'")
        cursor.run(
            "INSERT INTO gate_limit (gate_id, name, rate, burst, cost, tokens, filled_at)"
            " SELECT gate_id, 'calls', 1e6, 1e6, 1, 1e6, '2020-01-01T00:00:00.000Z' FROM gate WHERE gate_id <> 'none'"
        )


def main() -> None:
    """Measure the situations one after the other and print the result."""
    parser = noop.arguments("gates", 20_000)
    parser.add_argument("--closed", type=int, default=1_000_000, help="due rows behind closed gates")
    parser.add_argument("--times", type=int, default=100, help="claims per median (default %(default)s)")
    parser.add_argument("--situation", action="append", choices=SITUATIONS, help="this one; may be repeated")
    options = parser.parse_args()
    found: dict[str, dict[int, dict[str, float]]] = {}
    for situation in options.situation or SITUATIONS:
        with ExitStack() as stack:
            urls = {n: stack.enter_context(noop.scratch(options.url, f"gates_{n}")) for n in COUNTS}
            for count, url in urls.items():
                fill(url, situation, count, options.items, options.closed)
                noop.settle(url)
            beds = {n: Bed(stack.enter_context(Ledger.open(url, [noop.MACHINE]))) for n, url in urls.items()}
            for turn in range(options.times // AT_ONCE + 1):
                for bed in beds.values():
                    bed.measure(AT_ONCE)
                    if turn == 0:
                        bed.forget()
            found[situation] = {count: bed.medians() for count, bed in beds.items()}
    line = {
        "database": noop.database_of(options.url),
        "claimed": CLAIMED,
        "closed": options.closed,
        "situations": found,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
