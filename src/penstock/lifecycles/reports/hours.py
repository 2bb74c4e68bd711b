"""Where the hours of the accounts come from, and which accounts have none.

Hourly is on for an account while its folder of the stream is there: `reports.stream` is set, a consumer of the stream
fills it, and the account's profile has a folder in it. For the others no hourly dataset is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock.connectors.amazon_ads.stream import AmazonStream, StreamGone
from penstock.lifecycles.reports.settings import NO_STREAM, read_accounts
from penstock.model.clock import Clock, SystemClock
from penstock.settings.config import Config

Streams = Mapping[str, AmazonStream]
_MOST = 3


def read_streams(config: Config, clock: Clock) -> dict[str, AmazonStream]:
    """The stream of each account, whether it is there or not; none where `reports.stream` is not set."""
    root = config["reports.stream"]
    if root is None:
        return {}
    return {name: AmazonStream(Path(root), own.profile_id, clock) for name, own in read_accounts(config).items()}


def sourceless(config: Config) -> dict[str, str]:
    """The accounts that would have hours but for a source, and what it lacks; none where hourly is switched off.

    It looks at folders.
    """
    if not config["reports.hourly_offsets"]:
        return {}
    accounts = [name for name, account in read_accounts(config).items() if not account.paused]
    if config["reports.stream"] is None:
        return dict.fromkeys(accounts, NO_STREAM)
    streams = read_streams(config, SystemClock())
    return {name: why for name in accounts if (why := _lacks(streams[name])) is not None}


def _lacks(stream: AmazonStream) -> str | None:
    try:
        stream.require()
    except StreamGone as error:
        return str(error)
    return None


def told(lacking: Mapping[str, str]) -> str:
    """One line for people about at least one account: that hourly is off, for whom, and why."""
    names = sorted(lacking)
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    whom = f"{', '.join(names[:_MOST])}{more}"
    return f"hourly is off for {whom}: {lacking[names[0]]}"
