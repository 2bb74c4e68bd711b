"""The part of the price rules: a shop of four hundred variants, a rule for all of them, and a sale at a weekend.

Shopify's simulator loses an answer, throttles, and refuses a price. Somebody else edits three prices: one just before
the rule is applied, one some days later, and one during the sale. None of these edits is overwritten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.examples.demonstration.part import Check, Table, Told, World, closings, throttled
from penstock.lifecycles import rules
from penstock.lifecycles.rules import operations, undo, upkeep
from penstock.lifecycles.rules.settings import gate_of
from penstock.lifecycles.rules.target.machine import Cause
from penstock.model.clock import Clock, instant
from penstock.operations.declare import Operation
from penstock.operations.fields import Parameters
from penstock.simulators.server import in_thread
from penstock.simulators.shopify import ShopifySimulator
from penstock.simulators.shopify_data import Bucket, Store
from penstock.simulators.shopify_documents import CURRENCY
from penstock.simulators.shopify_faults import LOST, Fault
from penstock.simulators.shopify_journal import overwritten, repeated_unread

ACCOUNT, EVERYTHING, SALE = "shop", "autumn", "weekend"
PRODUCTS, VARIANTS = 100, 4
AUTHOR, APPROVER = "ana", "bo"
#: Variants, each of another product. The sale means the last of them alone.
REFUSED, EDITED, CHANGED_LATER, EDITED_IN_SALE = "1000008", "1000012", "1000016", "1000021"
_EDITS = {EDITED: "777.77", CHANGED_LATER: "888.88", EDITED_IN_SALE: "999.99"}
_DAY, _MINUTE = timedelta(days=1), timedelta(minutes=1)
_THROTTLE = Fault(429, {"errors": "Throttled"}, (("retry-after", "20"),))
_REFUSAL = ("INVALID_INPUT", "Price is invalid")
_SALE_FILE = f"{SALE}.toml"
_SALE_RULE = f"""\
[rules.{SALE}]
account = "{ACCOUNT}"
currency = "{CURRENCY}"
priority = 10
selector = {{ tags = ["summer"] }}
transform = {{ percent = "-25" }}
rounding = {{ ending = ".95" }}
compare_at = {{ becomes = "price_before" }}
"""
_RUNS = (
    "SELECT unit_id, rule_name, kind, status, target_count, applied_count, failed_count, rolled_back_count,"
    " excluded_count, approved_by FROM rule_run ORDER BY created_at, unit_id"
)
_WORDS = {
    "PREVIEW": "is being previewed",
    "QUEUED": "is queued",
    "APPLYING": "sets its prices",
    "APPLIED": "has set all of them",
    "PARTIAL": "has set some of them",
    "FAILED": "has set none of them",
    "ROLLED_BACK": "is rolled back",
}
_BEGUN = ("PREVIEW", "QUEUED", "APPLYING")


class RulesPart:
    """One shop. Ana asks for changes of its prices, and Bo approves the large one."""

    leaves = (_SALE_FILE,)

    def __init__(self, clock: Clock) -> None:
        # The bucket is of the API's largest plan: everything happens at one virtual moment.
        store = Store(PRODUCTS, clock.now(), variants=VARIANTS)
        self._shopify = ShopifySimulator(clock, store, Bucket(clock, 20_000.0, 2_000.0))
        self._folder = Path()

    @contextlib.contextmanager
    def serving(self, folder: Path, start: datetime, clock: Clock) -> Iterator[str]:  # noqa: ARG002 - one shape
        self.now_by(clock)
        self._folder = folder
        (folder / "secrets" / "shopify-token").write_text(self._shopify.admin_token)
        (folder / _SALE_FILE).write_text(_SALE_RULE)
        with in_thread(self._shopify) as address:
            yield "\n".join(self._settings(address))

    def _settings(self, address: str) -> Iterator[str]:
        yield '[rules]\napprove_above = 250\nreconcile_for = "7d"'
        yield f'private_downloads = ["{urlsplit(address).netloc}"]\n'
        yield f'[rules.accounts.{ACCOUNT}]\nconnector = "shopify"\nshop_url = "{address}"'
        yield 'token = { file = "secrets/shopify-token" }\npoints_per_second = 0\ncatalogue_every = "5d"\n'
        yield f'[rules.rules.{EVERYTHING}]\naccount = "{ACCOUNT}"\ncurrency = "{CURRENCY}"'
        yield 'selector = { everything = true }\ntransform = { percent = "-10" }\nrounding = { ending = ".99" }'
        yield 'floor = { cost_factor = "1.5" }\n'

    def now_by(self, clock: Clock) -> None:
        self._shopify.clock = self._shopify.admin.clock = self._shopify.points.clock = clock

    async def happen(self, world: World) -> None:
        morning = world.start + timedelta(hours=9)
        await self._change_everything(world, morning + 2 * _DAY)
        await world.until(morning + 5 * _DAY)
        self._edit(CHANGED_LATER)
        await self._hold_a_sale(world, morning + 10 * _DAY)

    async def _change_everything(self, world: World, at: datetime) -> None:
        """Previewed, approved, queued and applied, with trouble; on the next day what was refused is tried again."""
        await world.until(at)
        run = self._previewed(world, EVERYTHING)
        await world.until(at + 10 * _MINUTE)
        _do(world, operations.approve, operations.DigestOfRun(run=run), who=APPROVER)
        self._shopify.faults["update"].extend([LOST, _THROTTLE])
        self._shopify.admin.refusals[REFUSED] = _REFUSAL
        self._edit(EDITED)
        _do(world, operations.queue, operations.DigestOfRun(run=run))
        await world.until(at + _DAY)
        self._shopify.admin.refusals.clear()
        _do(world, operations.retry, operations.RetryParameters(run=run, cause=Cause.REFUSED))

    async def _hold_a_sale(self, world: World, at: datetime) -> None:
        """It starts and ends by itself. What somebody edited meanwhile stays, and a person says so by name."""
        await world.until(at)
        _do(world, upkeep.import_rules, upkeep.ImportParameters(file=str(self._folder / _SALE_FILE)))
        opens = world.start + 12 * _DAY
        run = self._previewed(world, SALE, start_at=opens, end_at=opens + 2 * _DAY, queue=True)
        await world.until(opens + _DAY)
        self._edit(EDITED_IN_SALE)
        await world.until(opens + 3 * _DAY)
        leave = undo.RollbackParameters(run=run, leave=(EDITED_IN_SALE,))
        _do(world, undo.rollback, leave, reason="the new price is meant to stay", who=APPROVER)

    def _previewed(self, world: World, rule: str, **asked: Any) -> str:
        """Have a rule previewed; the id of the run."""
        done = _do(world, operations.preview, operations.PreviewParameters(rule=rule, **asked))
        return str(done.follows).partition(":")[2]

    def _edit(self, variant: str) -> None:
        self._shopify.admin.edit(variant, _EDITS[variant])

    def told(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        """In the order in which it happened: virtual time stands still, so that much of it has one moment."""
        moves = [*self._moves(world, since, until)]
        yield from self._approved(world, since, until)
        yield from (told for status, told in moves if status in _BEGUN)
        failed = world.rows(
            "SELECT unit_id, reason, at FROM transition_log WHERE machine = 'rule_target' AND to_status = 'FAILED'"
            " AND at >= {since} AND at < {until}",
            since=since,
            until=until,
        )
        for unit_id, reason, at in failed:
            yield Told(instant(at), f"rule_target:{unit_id}: {reason}")
        yield from closings(world, gate_of(ACCOUNT), since, until)
        yield from (told for status, told in moves if status not in _BEGUN)
        yield from self._found(world, since, until)

    def _approved(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        found = world.rows(
            "SELECT unit_id, rule_name, kind, approved_by, approved_at FROM rule_run"
            " WHERE approved_at >= {since} AND approved_at < {until}",
            since=since,
            until=until,
        )
        for run, rule, kind, who, at in found:
            yield Told(instant(at), f"{rule} ({kind} {run[:8]}) is approved, by {who}")

    def _moves(self, world: World, since: datetime, until: datetime) -> Iterator[tuple[str, Told]]:
        """Every change of a run's state, with the state."""
        moves = world.rows(
            "SELECT l.unit_id, r.rule_name, r.kind, l.to_status, l.actor, l.reason, l.at FROM transition_log l"
            " JOIN rule_run r ON r.unit_id = l.unit_id WHERE l.machine = 'rule_run'"
            " AND (l.from_status IS NULL OR l.from_status <> l.to_status) AND l.at >= {since} AND l.at < {until}"
            " ORDER BY l.seq",
            since=since,
            until=until,
        )
        for run, rule, kind, status, actor, reason, at in moves:
            by = "" if actor.startswith("worker:") else f", by {actor.partition(':')[2]}"
            yield status, Told(instant(at), f"{rule} ({kind} {run[:8]}) {_WORDS[status]}{by}: {reason}")

    def _found(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        """Prices that a comparison found to differ, each when it was found first."""
        found = world.rows(
            "SELECT rule_run_id, sku, expected, actual, min(at) FROM reconciliation_mismatch"
            " GROUP BY rule_run_id, sku, expected, actual"
        )
        for run, sku, expected, actual, at in found:
            if since <= instant(at) < until:
                prices = f"{expected / 100:.2f} was set, {actual / 100:.2f} is there"
                yield Told(instant(at), f"rule_run:{run}: a comparison finds another price of {sku}: {prices}")

    def checks(self, world: World) -> Iterator[Check]:
        runs = world.rows(_RUNS)
        first = next((run for run in runs if run[1:3] == (EVERYTHING, "apply")), None)
        yield Check(
            "a run approved by a second person", f"rule_run:{first[0]}, by {first[9]}" if first and first[9] else None
        )
        yield Check("a lost answer, settled by a look", self._settled(world))
        yield Check("a throttle of Shopify, waited for", throttled(world, gate_of(ACCOUNT)))
        yield Check("a run PARTIAL, with a price refused and one that somebody else has set", self._partial(world))
        yield Check("a failed target, tried again and applied", self._again(world))
        yield Check("a price that somebody changed, found by a comparison", self._compared(world, CHANGED_LATER))
        yield Check("a sale, started and ended by itself", self._held(world))
        yield Check("nobody's edit overwritten, and no call repeated without a look", self._untouched())
        yield Check("every price at the shop as the ledger has it", self._equal(world))
        yield Check("books that balance", self._balanced(world, runs))

    def _settled(self, world: World) -> str | None:
        """Targets that were found to be there when their step looked before it called again."""
        sql = (
            "SELECT count(*) FROM transition_log WHERE machine = 'rule_target' AND to_status = 'APPLIED'"
            " AND reason = 'already there'"
        )
        ((count,),) = world.rows(sql)
        return f"{count} prices had arrived" if count else None

    def _partial(self, world: World) -> str | None:
        """The first run, as it ended first: what had failed, and why."""
        rows = world.rows(
            "SELECT l.reason FROM transition_log l JOIN rule_run r ON r.unit_id = l.unit_id AND r.rule_name = :rule"
            " WHERE l.machine = 'rule_run' AND l.to_status = 'PARTIAL' ORDER BY l.at",
            rule=EVERYTHING,
        )
        return str(rows[0][0]) if len(rows) > 1 and ", 2 failed" in rows[0][0] else None

    def _again(self, world: World) -> str | None:
        sql = "SELECT unit_id FROM rule_target WHERE id = :id AND retry_round = 1 AND status = 'APPLIED'"
        return next((f"rule_target:{unit_id}" for (unit_id,) in world.rows(sql, id=REFUSED)), None)

    def _compared(self, world: World, variant: str) -> str | None:
        sql = "SELECT count(*) FROM reconciliation_mismatch WHERE target_id = :id"
        ((count,),) = world.rows(sql, id=variant)
        return f"in {count} daily reports" if count else None

    def _held(self, world: World) -> str | None:
        """The sale is rolled back by a run of the scheduler's, which left the foreign edit alone."""
        sql = (
            "SELECT b.unit_id, b.applied_count FROM rule_run s JOIN rule_run b ON b.of_run_id = s.id"
            " WHERE s.rule_name = :rule AND s.status = 'ROLLED_BACK' AND b.status = 'PARTIAL' AND b.failed_count = 1"
        )
        rows = world.rows(sql, rule=SALE)
        kept = self._shopify.admin.store.variants[EDITED_IN_SALE].price == _EDITS[EDITED_IN_SALE]
        return f"rule_run:{rows[0][0]} put back {rows[0][1]} prices" if rows and kept else None

    def _untouched(self) -> str | None:
        journal = self._shopify.journal
        return None if overwritten(journal) or repeated_unread(journal) else f"{len(_EDITS)} edits"

    def _equal(self, world: World) -> str | None:
        """Compare the shop's own prices with the newest that was applied, or the catalogue's where none was."""
        ours = {
            str(variant): amount
            for variant, amount in world.rows("SELECT variant_id, unit_amount FROM catalogue")
            if variant not in _EDITS
        }
        store = self._shopify.admin.store
        there = {variant.id: int(variant.price.replace(".", "")) for variant in store if variant.id not in _EDITS}
        return f"{len(ours)} of them" if ours == there else None

    def _balanced(self, world: World, runs: list[tuple[Any, ...]]) -> str | None:
        """Every included target has ended, each run has as many as it counts, and none is in doubt."""
        laid = dict(
            world.rows(
                "SELECT r.unit_id, count(*) FROM rule_run r JOIN rule_target t ON t.rule_run_id = r.id"
                " GROUP BY r.unit_id"
            )
        )
        ((open_,),) = world.rows(
            "SELECT count(*) FROM rule_target WHERE in_doubt_since IS NOT NULL OR parked_at IS NOT NULL"
            " OR status IN ('QUEUED', 'APPLYING')"
        )
        even = all(sum(run[5:8]) == run[4] and run[4] + run[8] == laid.get(run[0], 0) for run in runs)
        return f"{sum(laid.values())} targets of {len(runs)} runs" if even and runs and not open_ else None

    def tables(self, world: World) -> Iterator[Table]:
        rows = [
            (run[:8], rule, kind, status, f"{targets}", f"{applied}", f"{failed}", f"{back}", f"{excluded}")
            for run, rule, kind, status, targets, applied, failed, back, excluded, _ in world.rows(_RUNS)
        ]
        headings = ("run", "rule", "kind", "status", ">targets", ">applied", ">failed", ">rolled back", ">excluded")
        yield Table("The runs of price rules", headings, rows)

    def next(self, world: World) -> Iterator[str]:
        yield "penstock rules runs"
        for run, *_ in world.rows(_RUNS)[:1]:
            yield f"penstock rules show {run[:8]}"
            yield f"penstock rules targets {run[:8]} --failed"
        yield f"penstock rules history SKU-{EDITED_IN_SALE}"
        yield "penstock rules reports"


def _do(world: World, operation: Operation[Any], parameters: Parameters, *, reason: str = "", who: str = AUTHOR) -> Any:
    return world.do(rules.lifecycle, operation, parameters, reason, who)
