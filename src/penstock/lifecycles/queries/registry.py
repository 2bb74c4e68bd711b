"""The queries of a configuration, by their keys."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct

from penstock.lifecycles.queries.settings import QueriesSettings, QuerySettings


class Configured(Struct, frozen=True):
    """One query as it is configured, with what `[queries]` says where it says nothing itself."""

    key: str
    name: str
    client: str
    parameters: Mapping[str, Any]
    zone: ZoneInfo
    horizon: timedelta
    seed_from: date | None
    max_pages: int
    max_offers: int
    paused: bool


_last: tuple[QueriesSettings, dict[str, Configured]] | None = None


def registry(settings: QueriesSettings) -> Mapping[str, Configured]:
    """Every query of these settings, by its key."""
    global _last  # noqa: PLW0603 - asked for at every step, under settings that change once in months
    if _last is None or _last[0] is not settings:
        found = (_configured(name, own, settings) for name, own in settings.queries.items())
        _last = settings, {one.key: one for one in found}
    return _last[1]


def _configured(name: str, own: QuerySettings, settings: QueriesSettings) -> Configured:
    return Configured(
        key=settings.key_of(own),
        name=name,
        client=own.client,
        parameters=own.parameters,
        zone=ZoneInfo(settings.clients()[own.client].time_zone),
        horizon=own.horizon or settings.horizon,
        seed_from=own.seed_from,
        max_pages=own.max_pages or settings.max_pages,
        max_offers=own.max_offers or settings.max_offers,
        paused=own.paused,
    )
