"""Random trouble and random edits by others, then a rollback: no price that somebody else has set is ever replaced.

Others edit a price at any moment but the one between a step's read and its write: there a provider without conditional
writes cannot tell, and only a comparison finds it. Every run is a seed: `RANDOM_RUNS=17,99 pytest …` replays some.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.lifecycles.rules import operations
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.run.machine import OPEN, R, Run
from penstock.lifecycles.rules.target.machine import T
from penstock.model.clock import Rng
from penstock.model.errors import InDoubt, Rejected, Throttled, Transient, UsageError
from tests.support.postgres import in_memory
from tests.support.price_shop import After, Answer, Kind, PriceShop, Refuse, euros
from tests.support.prices import Prices, prices

ALL = 1_000
BY_DAY = 12
LOOK = timedelta(seconds=20)
_ENDED = (R.APPLIED, R.PARTIAL, R.FAILED, R.ROLLED_BACK)


class Chaos:
    """What happens at a shop, by chance. It calms down when it is told to."""

    def __init__(self, shop: PriceShop, rng: Rng) -> None:
        self.shop, self._rng = shop, rng
        self.calm = False
        self.theirs: dict[str, Price] = {}
        self._edits = 0
        self._badness = rng.uniform(0, 0.5)
        self._meddling = rng.uniform(0, 0.3)

    def maybe(self, chance: float) -> bool:
        return self._rng.uniform(0, 1) < chance

    def one_of(self, things: Sequence[Any]) -> Any:
        return things[int(self._rng.uniform(0, len(things))) % len(things)]

    def meddle(self, ids: Sequence[str]) -> None:
        """Somebody else sets a price that nobody else would, or deletes a variant."""
        there = [one for one in ids if one in self.shop.prices]
        if not there or not self.maybe(self._meddling):
            return
        one = self.one_of(there)
        if self.maybe(0.1):
            self.shop.delete(one)
            return
        self._edits += 1
        self.theirs[one] = euros(50_000 + self._edits)
        self.shop.edit(one, self.theirs[one])

    def __call__(self, kind: Kind, ids: Sequence[str]) -> Answer:
        if self.calm or kind == "catalogue":
            return None
        if kind == "read":
            self.meddle(ids)
        if not self.maybe(self._badness):
            return None
        answer: Answer = self.one_of(
            [
                Transient("503"),
                Throttled("slow down", self._rng.uniform(0.1, 5)),
                *(
                    [InDoubt("closed"), After(InDoubt("closed")), Refuse({self.one_of(ids): "no"}), Rejected("never")]
                    if kind == "write"
                    else [After(Transient("closed"))]
                ),
            ]
        )
        return answer


def live(url: str, seed: int) -> None:
    """One random run, and its rollback."""
    rng = Rng(seed)
    shop = PriceShop(1 + int(rng.uniform(0, 4)), 1 + int(rng.uniform(0, 4)))
    with prices(url, shop, seed=seed, account=f"shop-{seed}", look_every=LOOK) as bench:
        chaos = Chaos(shop, rng)
        before = dict(shop.prices)
        shop.trouble = chaos
        run_id = bench.apply(seconds=chaos.one_of([1, 5, 30, 120]))
        if chaos.maybe(0.2) and bench.run(run_id).status in OPEN:
            bench.do(operations.cancel, run_id)
        chaos.meddle(list(shop.prices))
        run = settled(bench, chaos, run_id, calm=chaos.maybe(0.5))
        if run.status in (R.PARTIAL, R.FAILED) and chaos.maybe(0.5):
            bench.retry(run_id)
            run = settled(bench, chaos, run_id, calm=chaos.maybe(0.5))
        for _ in range(3):
            if bench.run(run_id).status not in (R.APPLIED, R.PARTIAL):
                break
            chaos.calm = False
            chaos.meddle(list(shop.prices))
            some = [t.id for t in bench.targets(run_id) if t.status is T.APPLIED and chaos.maybe(0.5)]
            try:
                back = bench.roll_back(run_id, *some, seconds=chaos.one_of([1, 30, 120]))
            except UsageError:  # nothing is left
                break
            settled(bench, chaos, back.id, calm=chaos.maybe(0.7))
        assert shop.wrong == []
        as_they_should_be(bench, chaos, before, run)


def settled(bench: Prices, chaos: Chaos, run_id: Any, *, calm: bool) -> Run:
    """Let time pass until a run has ended; in the end the shop is calm, or nothing would ever."""
    chaos.calm = calm
    for _ in range(40):
        bench.work(60)
        if bench.run(run_id).status in _ENDED:
            break
        chaos.calm = True
    run = bench.run(run_id)
    assert run.status in _ENDED, run
    return run


def as_they_should_be(bench: Prices, chaos: Chaos, before: dict[str, Price], run: Run) -> None:
    """Every price is theirs, or what the ledger says."""
    for target in bench.targets(run.id):
        if target.id not in chaos.shop.prices:
            continue
        found = chaos.shop.prices[target.id]
        if target.id in chaos.theirs:
            assert found == chaos.theirs[target.id], target.id
        elif target.status is T.APPLIED:
            assert found == Price.from_json(target.after_json or {}), target.id
        else:
            assert found == before[target.id], target.id


def numbers(first: int, last: int) -> list[int]:
    chosen = os.environ.get("RANDOM_RUNS")
    return [int(one) for one in chosen.split(",")] if chosen else list(range(first, last))


def several(template: Path, seeds: list[int]) -> None:
    for seed in seeds:
        with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
            path = Path(folder) / "penstock.db"
            shutil.copy(template, path)
            try:
                live(f"sqlite:///{path}", seed)
            except Exception as error:
                raise AssertionError(f"RANDOM_RUNS={seed} replays it") from error


@pytest.mark.parametrize("part", range(2))
def test_no_foreign_price_is_replaced(rules_file, part):
    half = BY_DAY // 2
    several(rules_file, numbers(part * half, (part + 1) * half))


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("part", range(10))
def test_no_foreign_price_is_replaced_in_a_thousand_runs(rules_file, part):
    size = ALL // 10
    several(rules_file, numbers(part * size, (part + 1) * size))


def test_nor_on_the_server(postgres_rules_url):
    for seed in numbers(ALL, ALL + 1):
        live(postgres_rules_url, seed)
