"""Which accounts have hours: those whose folder of the stream is there. Light: a client is imported with a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from penstock.lifecycles.reports.settings import NO_STREAM, ReportSettings
from penstock.model.clock import Clock, SystemClock

if TYPE_CHECKING:
    from penstock.connectors.amazon_ads.stream import AmazonStream

Streams: TypeAlias = "Mapping[str, AmazonStream]"
_MOST = 3


def streams(settings: ReportSettings, clock: Clock) -> dict[str, AmazonStream]:
    """The stream of each account, whether it is there or not; none where `reports.stream` is not set."""
    root = settings.stream
    if root is None:
        return {}
    from penstock.connectors.amazon_ads.stream import AmazonStream

    return {name: AmazonStream(root, own.profile_id, clock) for name, own in settings.accounts.items()}


def sourceless(settings: ReportSettings) -> dict[str, str]:
    """The accounts that would have hours but for a source, and what it lacks; none where hourly is switched off.

    It looks at folders.
    """
    if not settings.hourly_offsets:
        return {}
    names = [name for name, account in settings.accounts.items() if not account.paused]
    if settings.stream is None:
        return dict.fromkeys(names, NO_STREAM)
    found = streams(settings, SystemClock())
    return {name: why for name in names if (why := _lacks(found[name])) is not None}


def _lacks(stream: AmazonStream) -> str | None:
    from penstock.connectors.amazon_ads.stream import StreamGone

    try:
        stream.require()
    except StreamGone as error:
        return str(error)
    return None


def told(lacking: Mapping[str, str]) -> str:
    """One line about at least one account: that hourly is off, for whom, and why."""
    return f"hourly is off for {some_of(lacking)}: {lacking[min(lacking)]}"


def some_of(names: Iterable[str]) -> str:
    """The first few of many names."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _MOST:,} more" if len(ordered) > _MOST else ""
    return f"{', '.join(ordered[:_MOST])}{more}"
