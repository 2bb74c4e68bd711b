"""How much a run may do at most: what a preview is compared with before it can be queued, and a run while it goes."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from penstock.lifecycles.rules.money import read_decimal, text, write_decimal
from penstock.lifecycles.rules.totals import Change, Totals, percent
from penstock.model.inert import inert
from penstock.settings.typed import Settings, says

_MOST = 10_000_000
_NAMED = 5
_HUNDRED = Decimal(100)


def read_share(value: Any) -> Decimal:
    """A percentage from 0 to 100. Raises ValueError with what is allowed."""
    wanted = 'a percentage from 0 to 100, for example 5 or "2.5"'
    try:
        share = read_decimal(value)
    except ValueError:
        raise ValueError(wanted) from None
    if not 0 <= share <= _HUNDRED:
        raise ValueError(wanted)
    return share


class Limits(Settings):
    """`limits`: what a run may do at most. A preview that goes beyond them cannot be queued."""

    most_targets: Annotated[int | None, says("The most targets.", ge=1, le=_MOST, examples=[10_000])] = None
    most_percent: Annotated[
        Decimal,
        says("The largest change of any price, in percent.", reads=read_decimal, writes=write_decimal, examples=[50]),
    ] = Decimal(50)
    most_share: Annotated[
        Decimal | None,
        says("The largest share of the catalogue, in percent.", reads=read_share, writes=write_decimal, examples=[25]),
    ] = None
    stop_at: Annotated[
        Decimal,
        says("A run stops when more than so many percent of its targets fail.", reads=read_share, writes=write_decimal),
    ] = Decimal(10)
    judged_from: Annotated[int, says("How many targets must be done before failures are judged.", ge=1, le=_MOST)] = 20
    approve_above: Annotated[
        int | None, says("With more targets a second person approves.", ge=0, le=_MOST, examples=[1_000])
    ] = None

    def __post_init__(self) -> None:
        if self.most_percent <= 0:
            raise ValueError(f"most_percent {self.most_percent} must be above 0")


def check(limits: Limits, totals: Totals) -> list[str]:
    """Why a preview cannot be queued, each with the number that broke a limit; nothing if it can."""
    refused = []
    if totals.unknown:
        more = f" and {len(totals.unknown) - _NAMED:,} more" if len(totals.unknown) > _NAMED else ""
        named = ", ".join(map(inert, totals.unknown[:_NAMED]))
        refused.append(f"the catalogue does not have {len(totals.unknown):,} of the rule's SKUs: {named}{more}")
    if not totals.targets:
        refused.append(_nothing(totals))
    if limits.most_targets is not None and totals.targets > limits.most_targets:
        refused.append(f"{totals.targets:,} targets are more than most_targets, {limits.most_targets:,}")
    largest = totals.largest
    if largest is not None and _passes(abs(largest.difference), largest.target.before.amount, limits.most_percent):
        refused.append(_too_far(largest, limits.most_percent))
    if limits.most_share is not None and _passes(totals.targets, totals.catalogue, limits.most_share):
        refused.append(
            f"{totals.targets:,} of {totals.catalogue:,} items ({percent(totals.targets, totals.catalogue)} %) are"
            f" more than most_share, {write_decimal(limits.most_share)} %"
        )
    return refused


def needs_approval(limits: Limits, targets: int) -> bool:
    """Whether a second person must approve so many targets."""
    return limits.approve_above is not None and targets > limits.approve_above


def must_stop(limits: Limits, applied: int, failed: int) -> str | None:
    """Why a run stops: its failure rate, once enough targets are done to judge it; None if it goes on."""
    done = applied + failed
    if done < limits.judged_from or not _passes(failed, done, limits.stop_at):
        return None
    return (
        f"{failed:,} of {done:,} targets failed ({percent(failed, done)} %), which is more than stop_at,"
        f" {write_decimal(limits.stop_at)} %"
    )


def _passes(part: int, whole: int, limit: Decimal) -> bool:
    """Whether a share is more than so many percent, exactly."""
    upper, lower = limit.as_integer_ratio()
    return part * 100 * lower > upper * whole


def _too_far(change: Change, limit: Decimal) -> str:
    before, after = change.target.before, change.target.after
    return (
        f"the price of {inert(change.item.sku)} would go from {text(before.amount, before.currency)} to"
        f" {text(after.amount, after.currency)} ({change.percent} %), which is more than most_percent,"
        f" {write_decimal(limit)} %"
    )


def _nothing(totals: Totals) -> str:
    if not totals.meant:
        return f"the rule means none of the {totals.catalogue:,} items"
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in totals.excluded.most_common())
    return f"no price would change: all {totals.meant:,} items that the rule means are excluded ({reasons})"
