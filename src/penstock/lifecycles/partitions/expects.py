"""What is to come of an extraction: its next offset. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from penstock.lifecycles.partitions.decide import RESTING
from penstock.lifecycles.partitions.machine import Extraction, extraction, key_of
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.model.forecast import Expected


def expects(settings: PartitionSettings, unit: Any, since: datetime) -> Sequence[Expected] | None:
    """An extraction that rests is wanted again at the next offset after it came to rest."""
    if not isinstance(unit, Extraction) or unit.status not in RESTING:
        return None
    ladder = settings.ladder(key_of(unit))
    due = None if ladder is None else ladder.next_at(since)
    return [] if due is None else [Expected(machine=extraction.name, at=due, source=str(unit.status))]
