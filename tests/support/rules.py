"""What people do to rules and their runs, on a bench of prices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.lifecycles.rules import operations, readings
from penstock.lifecycles.rules.definition import RuleSettings, read_rules
from penstock.lifecycles.rules.needs import needs
from penstock.lifecycles.rules.run.machine import Run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.model.errors import UsageError
from penstock.model.unit import Ref, replace
from penstock.operations.carry import Done, Planned, carry_out, make_plan
from penstock.operations.declare import Ask, Declaration, Operation, Reading
from penstock.operations.needs import Need
from penstock.operations.plan import Together
from penstock.operations.reader import Reader
from tests.support.price_shop import CURRENCY, PriceShop
from tests.support.prices import ACCOUNT, PAST, WHO, Prices, prices

_NAMED: dict[str, Declaration] = {one.name: one for one in (*operations.OPERATIONS, *readings.READINGS)}


class Desk:
    """Commands by their names: `desk.do("preview", rule="cut")`."""

    def __init__(self, bench: Prices) -> None:
        self.bench = bench

    @property
    def settings(self) -> RulesSettings:
        return self.bench.settings

    def ask(self, who: str = WHO, reason: str = "because") -> Ask[Any]:
        reader = Reader(self.bench.ledger.database, self.bench.ledger.machines.values(), PAST)
        return Ask(reader, self.bench.settings, self.bench.time.now(), who, reason)

    def plan(self, name: str | Operation[Any], /, *, who: str = WHO, reason: str = "because", **asked: Any) -> Planned:
        found = _NAMED[name] if isinstance(name, str) else name
        assert isinstance(found, Operation)
        return make_plan(found, self.ask(who, reason), found.parameters(**asked), owner="rules", version="v1")

    def together(self, name: str, /, **asked: Any) -> Together:
        """The plan of an operation that changes things together."""
        plan = self.plan(name, **asked).plan
        assert isinstance(plan, Together)
        return plan

    def do(self, name: str | Operation[Any], /, *, who: str = WHO, reason: str = "because", **asked: Any) -> Done:
        planned = self.plan(name, who=who, reason=reason, **asked)
        return carry_out(self.bench.ledger, self.ask(who, reason), planned)

    def refused(self, name: str, message: str, /, *, who: str = WHO, **asked: Any) -> None:
        """It is refused with one line that says so, and nothing is written."""
        before = self.everything()
        with pytest.raises(UsageError, match=message) as caught:
            self.do(name, who=who, **asked)
        assert "\n" not in str(caught.value)
        assert self.everything() == before

    def read(self, name: str, /, **asked: Any) -> Any:
        found = _NAMED[name]
        assert isinstance(found, Reading)
        return found(self.ask(), found.parameters(**asked))

    def needs(self) -> list[Need]:
        """What waits for a person."""
        return list(needs(self.ask()))

    def everything(self) -> list[Any]:
        """All that an operation could have changed."""
        tables = ("rule", "rule_price", "locked_sku", "rule_run", "rule_target", "event_log")
        return [self.bench.rows(f"SELECT count(*) FROM {table}") for table in (*tables, "transition_log")] + [
            sorted((run.unit_id, run.version) for run in self.bench.runs())
        ]

    def preview(self, rule: str = "cut", *, seconds: float = 5, **asked: Any) -> Run:
        """Have a rule previewed, and let a worker do it."""
        done = self.do("preview", rule=rule, **asked)
        self.bench.work(seconds)
        return self.run(str(done.follows).partition(":")[2])

    def queued(self, rule: str = "cut", **asked: Any) -> Run:
        run = self.preview(rule, **asked)
        self.do("queue", run=str(run.id))
        return self.run(str(run.id))

    def applied(self, rule: str = "cut", *, seconds: float = 60) -> Run:
        run = self.queued(rule)
        self.bench.work(seconds)
        return self.run(str(run.id))

    def run(self, run_id: str) -> Run:
        (found,) = [run for run in self.bench.runs() if str(run.id) == run_id]
        return found

    def take_up(self, run: Run, *, seconds: float = 60) -> Run:
        """What the kernel does when a counter falls, and all that comes of it."""
        self.bench.ledger.nudge([Ref("rule_run", run.unit_id)])
        self.bench.work(seconds)
        return self.run(str(run.id))

    def configure(self, **rules: dict[str, Any]) -> None:
        """These rules are in the configuration."""
        made = {name: {"account": ACCOUNT, "currency": CURRENCY, **own} for name, own in rules.items()}
        found = {rule.name: rule for rule in read_rules({"rules": made}, "test")} if made else {}
        own = {
            name: RuleSettings(**{field: getattr(rule, field) for field in RuleSettings.__struct_fields__})
            for name, rule in found.items()
        }
        self.bench.settings = replace(self.bench.settings, rules=own)


@contextmanager
def desk(url: str, shop: PriceShop | None = None, **options: Any) -> Iterator[Desk]:
    """A desk over a shop of two products with two variants each, unless another is given."""
    with prices(url, shop or PriceShop(2, 2), **options) as bench:
        yield Desk(bench)
