"""What is to come of the lifecycle's schedules: no queries. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.lifecycles.queries.settings import QueriesSettings
from penstock.model.forecast import Expected
from penstock.worker.schedule_unit import Schedule


def expects(settings: QueriesSettings, unit: Any, since: datetime) -> Sequence[Expected] | None:  # noqa: ARG001 - as declared
    """A query is born when it is configured, and by no tick afterwards."""
    return [] if isinstance(unit, Schedule) else None
