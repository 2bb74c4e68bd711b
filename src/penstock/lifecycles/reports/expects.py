"""What is to come of a dataset: its next offset. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.lifecycles.reports.decide import ladder
from penstock.lifecycles.reports.machine import Report, S, machine
from penstock.lifecycles.reports.settings import ReportSettings
from penstock.model.forecast import Expected

_RESTING = (S.MISSING, S.COMPLETED, S.ERROR)


def expects(settings: ReportSettings, unit: Any, since: datetime) -> Sequence[Expected] | None:
    """A dataset that rests is refreshed at the next offset after it came to rest."""
    if not isinstance(unit, Report) or unit.status not in _RESTING:
        return None
    account = settings.accounts.get(unit.account)
    if account is None or account.paused:
        return []
    due = ladder(unit, settings).next_at(since)
    return [] if due is None else [Expected(machine=machine.name, at=due, source=str(unit.status))]
