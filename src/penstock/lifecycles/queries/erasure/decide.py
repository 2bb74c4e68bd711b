"""What an erasure needs next. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from penstock.lifecycles.queries.erasure.machine import E, Erasure, Kind, Step
from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.outcome import Act, Decision, Wait

if TYPE_CHECKING:
    from penstock.connectors.rest_json.settings import RestSettings

REMOVE = "remove"
_SAYS = {
    Step.MARK: "from now on nothing more of it is kept",
    Step.SET_ASIDE: "it may be among the records that could not be used",
    Step.ROWS: "its rows are to be blanked",
    Step.COMPANIES: "what is known of the company is to be put right",
    Step.PAGES: "landed pages may have it",
    Step.LEFTOVERS: "a crash may have left pages behind that have it",
}


def decide(unit: Erasure, now: datetime, settings: QueriesSettings, seen: None) -> Decision:  # noqa: ARG001 - one shape
    """One step after the other. Pages that were replaced go before more are: so there is never much of both."""
    if unit.status is not E.ERASING:
        return Wait(None, f"the erasure is {unit.status}")
    if unit.kind is Kind.RECORD and own_settings(settings, unit.client) is None:
        why = f"[queries.rest_json.{unit.client}] is not configured with a table; configure it again"
        return Wait(now + timedelta(minutes=5), why)
    if unit.leaving:
        return Act(REMOVE, "pages that were replaced are to be removed", counts_attempt=False)
    return Act(unit.step, _SAYS[unit.step], counts_attempt=False)


def own_settings(settings: QueriesSettings, client: str) -> RestSettings | None:
    """What the configuration says of a client whose records have a table of their own; None where it has none."""
    found = settings.rest_json.get(client)
    return found if found is not None and found.table is not None else None
