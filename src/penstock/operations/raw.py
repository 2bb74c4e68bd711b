"""Landed data: what nobody needs any more, and removing it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.cadence import parse_span
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.unit import Ref
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, column, option
from penstock.operations.plan import Wake
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader
    from penstock.raw.collect import Collected, Holds

COLLECT = "collect-raw"
_MOST_SHOWN = 1_000


class Superseded(Parameters, frozen=True):
    superseded: Annotated[
        timedelta | None, option("Also count superseded runs of this age; by default the schedule's.", example="90d")
    ] = None


class LeftAlone(Row, frozen=True):
    path: Annotated[str, column("Where it lies.", show="reference")]
    reason: Annotated[str, column("Why it cannot be collected.", show="text")]


@reading("raw unneeded", "Landed data that nobody needs, counted.", no_past="it looks at the files that are there")
def unneeded(ask: Ask[KernelSettings], wanted: Superseded) -> Page[LeftAlone]:
    """Attempts that were never finalised count a day after they were last written."""
    _require_landed(ask)
    found = _count(ask, _schedule_age(ask) if wanted.superseded is None else wanted.superseded)
    rows = [LeftAlone(path=path, reason=why) for path, why in list(found.skipped.items())[:_MOST_SHOWN]]
    counts = {"unfinished": found.unfinished, "superseded": found.superseded, "under way": found.under_way}
    return Page(rows=rows, counts=counts, note=f"would collect {found.counts()}")


@operation("raw collect", "Remove landed data that nobody needs.")
def collect(ask: Ask[KernelSettings]) -> Wake:
    """Runs the schedule collect-raw now; a worker does the work. Superseded runs go too if the schedule says so."""
    _require_landed(ask)
    found = _count(ask, _schedule_age(ask))
    return Wake([Ref("schedule", COLLECT)], {}, f"collect {found.counts()}, by running the schedule {COLLECT} now")


OPERATIONS = [collect]
READINGS = [unneeded]


def superseded_age(settings: Mapping[str, Any]) -> timedelta | None:
    """The age that a schedule of `collect-raw` gives. Raises UsageError for settings that it does not take."""
    if unknown := sorted(settings.keys() - {"superseded"}):
        msg = f'{COLLECT} takes settings = {{ superseded = "90d" }} and does not know {unknown[0]!r}'
        raise UsageError(msg)
    given = settings.get("superseded")
    return None if given is None else parse_span(str(given))


def all_holds(ledger: Ledger | Reader, app: Any) -> Holds:
    """What the lifecycles of a program need, of those whose machines the ledger has."""
    from penstock.raw.collect import held_by_any

    there = {row[0] for row in ledger.read(lambda cursor: cursor.rows("SELECT name FROM machine_definition"))}
    keepers = [one for one in app.lifecycles if one.holds and there.issuperset(m.name for m in one.machines)]
    return held_by_any([partial(one.holds, ledger) for one in keepers])


def _require_landed(ask: Ask[KernelSettings]) -> None:
    ask.reader.kept()  # what is no ledger is refused as such
    if not any(one.holds for one in ask.program.app.lifecycles):
        raise UsageError("no lifecycle of this configuration lands data; there is nothing to collect")


def _count(ask: Ask[KernelSettings], superseded: timedelta | None) -> Collected:
    from penstock.raw.collect import collect_by_age

    holds = all_holds(ask.reader, ask.program.app)
    return collect_by_age(ask.program.ports.raw, holds, ask.now, superseded=superseded, dry_run=True)


def _schedule_age(ask: Ask[KernelSettings]) -> timedelta | None:
    try:
        found: Any = ask.reader.get(Ref("schedule", COLLECT))
    except UnknownUnit:
        raise UsageError(f"the ledger has no schedule {COLLECT}; 'penstock up' keeps the schedules") from None
    return superseded_age(found.settings or {})
