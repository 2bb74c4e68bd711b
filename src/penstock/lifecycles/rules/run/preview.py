"""Working out a run's targets: page by page from the catalogue, or from the run that is undone or mended.

What a page comes to is born with the step that made it. When all is laid down the run is summed up from its targets as
the ledger has them, so that the digest says exactly what would be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.ledger.schema.columns import document
from penstock.lifecycles.rules.catalogue import items_after, shared_skus, standing_of
from penstock.lifecycles.rules.digest import PreviewDigest
from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.limits import check
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.outcomes import Excluded, Reason
from penstock.lifecycles.rules.outcomes import Target as Priced
from penstock.lifecycles.rules.pricing import evaluate
from penstock.lifecycles.rules.registry import Kept, kept_rules, locked_skus, priced, unknown_skus, version_of
from penstock.lifecycles.rules.run.machine import Kind, Run, asked_by
from penstock.lifecycles.rules.run.rollback import LEFT
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.target.machine import Target, batch_key_of
from penstock.lifecycles.rules.totals import Change, Totals
from penstock.model.errors import Rejected
from penstock.model.outcome import Birth, Outcome
from penstock.model.unit import replace

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor
    from penstock.operations.reader import Reader
    from penstock.worker.flow import Io

AT_ONCE = 2_500
"""So many variants are looked at by one step: with their births they stay well below what an outcome carries."""


class Previews:
    """Works out the targets of runs."""

    def __init__(self, settings: RulesSettings) -> None:
        self._settings = settings
        #: SKUs that several variants have, of the run that is worked on: the whole catalogue is asked once.
        self._shared: tuple[UUID, frozenset[str]] | None = None

    async def step(self, run: Run, io: Io) -> Outcome[Run]:
        """The next page of targets; when there is none, the run is ready to be summed up."""
        units, position = await io.ledger(lambda ledger: self._page(ledger, run))
        now = io.now()
        after = replace(run, position=position) if position is not None else replace(run, laid_at=now)
        births = [Birth(unit, "previewed") for unit in units]
        said = f"{len(units):,} variants worked out" if units else "every variant was looked at"
        return Outcome(run, after, said, others=births, keep_claim=True)

    async def sum_up(self, run: Run, io: Io) -> Outcome[Run]:
        """Totals, digest and limits, from the targets that were laid down."""
        summary = await io.ledger(lambda ledger: summed_up(ledger, self._settings, run))
        totals = summary.totals
        limit = summary.approve_above
        after = replace(
            run,
            previewed_at=io.now(),
            preview_digest=summary.digest,
            target_count=totals.targets,
            excluded_count=totals.meant - totals.targets,
            summary=summary.as_json(),
            needs_approval=run.kind is Kind.APPLY and totals.targets > limit,
            due_at=None,
        )
        said = f"{totals.targets:,} targets, {after.excluded_count:,} excluded"
        blocked = [*summary.refused, *(["a second person must approve it"] if after.needs_approval else [])]
        if run.queue_when_ready and blocked and run.kind is Kind.APPLY:
            after = replace(after, queue_when_ready=False, error="; ".join(blocked))
        return Outcome(run, after, said, keep_claim=after.queue_when_ready)

    def _page(self, ledger: Ledger, run: Run) -> tuple[list[Target], str | None]:
        """The next targets, and the position after them; None: there are no more."""
        if run.kind is Kind.APPLY:
            return self._from_catalogue(ledger, run)
        rows = ledger.read(lambda cursor: _undone(ledger, cursor, run))
        made = [_target(run, *row) for row in rows]
        wanted = None if run.wanted is None else set(map(str, run.wanted))
        chosen = [unit for unit in made if wanted is None or unit.id in wanted]
        return chosen, made[-1].id if made else None

    def _from_catalogue(self, ledger: Ledger, run: Run) -> tuple[list[Target], str | None]:
        kept = version_of(ledger, run.tenant_id, run.rule_name, run.rule_version)
        standing = standing_of(ledger, run.account)
        if standing is None:
            raise Rejected(f"the catalogue of {run.account} was never read whole")
        whole = standing.number
        if self._shared is None or self._shared[0] != run.id:
            self._shared = (run.id, ledger.read(lambda cursor: shared_skus(cursor, run.account, whole)))
        items = ledger.read(lambda cursor: items_after(cursor, run.account, whole, run.position, AT_ONCE))
        found = evaluated(ledger, self._settings, kept, items, self._shared[1])
        return [_target(run, item, outcome) for item, outcome in found], items[-1].variant_id if items else None


def evaluated(
    reader: Reader | Ledger, settings: RulesSettings, kept: Kept, items: Sequence[Item], shared: frozenset[str]
) -> Iterator[tuple[Item, Priced | Excluded]]:
    """What a rule makes of these items, with what is locked and which rules come before it."""
    tenant, skus = settings.tenant_id, {item.sku for item in items}
    others = [
        priced(reader, tenant, other, skus)
        for other in kept_rules(reader, tenant)
        if other.rule.account == kept.rule.account and other.rule.name != kept.rule.name and other.rule.active
    ]
    locked = locked_skus(reader, settings, kept.rule.account)
    return evaluate(priced(reader, tenant, kept, skus), items, locked, others, duplicated=shared)


def _target(run: Run, item: Item, outcome: Priced | Excluded) -> Target:
    made = Target(
        rule_run_id=run.id,
        id=item.variant_id,
        tenant_id=run.tenant_id,
        account=run.account,
        product_id=item.product_id,
        sku=item.sku,
        batch_key=batch_key_of(run.account, run.id, item.product_id),
        before_json=item.price.as_json(),
    )
    if run.kind is Kind.ROLLBACK:
        made = replace(made, rolls_back=run.of_run_id, asked_by=asked_by(run))
    if isinstance(outcome, Priced):
        return replace(made, after_json=outcome.after.as_json())
    return replace(made, included=False, excluded_code=str(outcome.reason), excluded_reason=outcome.sentence)


def _undone(ledger: Ledger, cursor: Cursor, run: Run) -> list[tuple[Item, Priced]]:
    """What a rollback puts back, or what a repair sets again: the variants with both prices."""
    sql = ledger.database.sql
    given: dict[str, Any] = {"run": str(run.of_run_id), "after": run.position or "", "n": AT_ONCE}
    mine = f"t.rule_run_id = {sql.identifier('run')} AND t.id > :after"
    if run.kind is Kind.ROLLBACK:
        rows = cursor.rows(
            f"SELECT t.id, t.product_id, t.sku, t.before_json, t.after_json FROM rule_target t WHERE {mine} AND {LEFT}"
            " ORDER BY t.id LIMIT :n",
            **given,
        )
        return [_again(r, Priced(_price(r[4]), _price(r[3]))) for r in rows]
    report = f"m.report_id = {sql.identifier('report')} AND m.target_id = t.id AND m.actual IS NOT NULL"
    rows = cursor.rows(
        "SELECT t.id, t.product_id, t.sku, t.after_json, m.actual, m.actual_compare_at FROM rule_target t"
        f" JOIN reconciliation_mismatch m ON {report} WHERE {mine} AND t.status = 'APPLIED' ORDER BY t.id LIMIT :n",
        report=str(run.metadata.get("report")),
        **given,
    )
    found = []
    for row in rows:
        wanted = _price(row[3])
        found.append(_again(row, Priced(Price(row[4], row[5], wanted.currency), wanted)))
    return found


def _again(row: Sequence[Any], target: Priced) -> tuple[Item, Priced]:
    variant, product, sku = map(str, row[:3])
    return Item(variant_id=variant, product_id=product, sku=sku, price=target.before), target


def _price(kept: Any) -> Price:
    return Price.from_json(document(kept) if isinstance(kept, str) else kept)


class Summary:
    """What a preview comes to, as it is kept with the run."""

    def __init__(self, totals: Totals, digest: str, refused: Sequence[str], kept: Kept | None, default: int) -> None:
        self.totals = totals
        self.digest = digest
        self.refused = list(refused)
        self._kept = kept
        own = kept.rule.limits.approve_above if kept is not None else None
        self.approve_above = default if own is None else own

    def as_json(self) -> dict[str, Any]:
        totals = self.totals
        limits = self._kept.rule.limits if self._kept is not None else None
        return {
            "catalogue": totals.catalogue,
            "targets": totals.targets,
            "excluded": {str(reason): count for reason, count in totals.excluded.most_common()},
            "before": totals.before,
            "after": totals.after,
            "rises": totals.rises,
            "falls": totals.falls,
            "mean_percent": _text(totals.mean_change),
            "largest_rises": [_change(one) for one in totals.largest_rises],
            "largest_falls": [_change(one) for one in totals.largest_falls],
            "refused": self.refused,
            "limits": None if limits is None else {"stop_at": str(limits.stop_at), "judged_from": limits.judged_from},
        }


def _change(one: Change) -> dict[str, Any]:
    return {
        "variant": one.item.variant_id,
        "sku": one.item.sku,
        "before": one.target.before.amount,
        "after": one.target.after.amount,
        "percent": str(one.percent),
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def summed_up(ledger: Ledger, settings: RulesSettings, run: Run) -> Summary:
    """The summary of a run's targets as the ledger has them."""
    totals = Totals()
    kept = version_of(ledger, run.tenant_id, run.rule_name, run.rule_version) if run.kind is Kind.APPLY else None
    digest = PreviewDigest(kept.digest if kept is not None else f"{run.kind}:{run.of_run_id}", run.account)
    for item, outcome in _laid_down(ledger, run):
        totals.add(item, outcome)
        if isinstance(outcome, Priced):
            digest.add(item.variant_id, outcome)
    refused: list[str] = []
    if kept is not None:
        standing = standing_of(ledger, run.account)
        if standing is not None:
            totals.catalogue = standing.variants
            totals.unknown = unknown_skus(ledger, run.tenant_id, kept, standing.number)
        refused = check(kept.rule.limits, totals)
    return Summary(totals, digest.hexdigest(), refused, kept, settings.approve_above)


def _laid_down(ledger: Ledger | Reader, run: Run) -> Iterator[tuple[Item, Priced | Excluded]]:
    """The targets of a run, in the order of their variants."""
    after = ""
    mine = f"rule_run_id = {ledger.database.sql.identifier('run')}"
    columns = "id, product_id, sku, before_json, after_json, excluded_code, excluded_reason"
    sql = f"SELECT {columns} FROM rule_target WHERE {mine} AND id > :after ORDER BY id LIMIT {AT_ONCE}"
    while rows := ledger.read(lambda cursor, last=after: cursor.rows(sql, run=str(run.id), after=last)):  # type: ignore[misc]
        for one, product, sku, before, wanted, code, why in rows:
            price = _price(before)
            item = Item(variant_id=str(one), product_id=str(product), sku=str(sku), price=price)
            yield item, Excluded(Reason(code), str(why)) if wanted is None else Priced(price, _price(wanted))
        after = str(rows[-1][0])


def priced_now(reader: Reader, settings: RulesSettings, run: Run) -> Iterator[tuple[str, Priced]]:
    """The targets that a preview of the same rule would have now, by the catalogue as it is."""
    kept = version_of(reader, run.tenant_id, run.rule_name, run.rule_version)
    standing = standing_of(reader, run.account)
    whole = standing.number if standing is not None else 0
    shared = reader.read(lambda cursor: shared_skus(cursor, run.account, whole))
    position: str | None = None
    while items := reader.read(lambda cursor, after=position: items_after(cursor, run.account, whole, after, AT_ONCE)):  # type: ignore[misc]
        for item, outcome in evaluated(reader, settings, kept, items, shared):
            if isinstance(outcome, Priced):
                yield item.variant_id, outcome
        position = items[-1].variant_id


def differing(reader: Reader, settings: RulesSettings, run: Run) -> int:
    """How many targets of a preview would be others now: changed, gone, or new. 0: the digest is the same."""
    kept = version_of(reader, run.tenant_id, run.rule_name, run.rule_version)
    digest = PreviewDigest(kept.digest, run.account)
    for variant, target in priced_now(reader, settings, run):
        digest.add(variant, target)
    if digest.hexdigest() == run.preview_digest:
        return 0
    left = dict(priced_now(reader, settings, run))
    changed = 0
    for item, outcome in _laid_down(reader, run):
        if isinstance(outcome, Priced):
            changed += left.pop(item.variant_id, None) != outcome
    # What changed in between comes to the same as one more change.
    return (changed + len(left)) or 1
