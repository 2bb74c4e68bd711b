"""The feeds and the published watermarks of a configuration: connectors wired to settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.nivoda.client import Api, Credentials, Nivoda
from penstock.connectors.watermark import Blob, open_blob
from penstock.lifecycles.harvest.feed import Configured, Feed
from penstock.lifecycles.harvest.nivoda import NivodaSource, nivoda_feed
from penstock.lifecycles.harvest.settings import FeedSettings, HarvestSettings, gate_of

if TYPE_CHECKING:
    from penstock.app.ports import Ports


def make_feed(name: str, own: FeedSettings, ports: Ports) -> Configured:
    """A feed with connections of its own. Raises UsageError for an address or a field that cannot be one."""
    api = Api(
        url=own.url,
        authentication=own.authentication,
        token_life=own.token_life,
        price_bounds=own.price_bounds,
        updated_field=own.updated_field,
    )
    client = Nivoda(Credentials(own.username, own.password), ports.clock, api=api)
    gate = gate_of(name)
    return Configured(feed_of(name, own), NivodaSource(client, own.filters), gate, metered=ports.metered(gate))


def feed_of(name: str, own: FeedSettings) -> Feed:
    """A feed without connections: its tables, and what becomes of its records."""
    return nivoda_feed(name, own.price_unit)


def make_blob(feed: str, settings: HarvestSettings) -> Blob | None:
    """Where a feed's watermark is published; None where it is not, or the feed is not configured. Raises UsageError."""
    own = settings.feeds.get(feed)
    if own is None or own.watermark is None:
        return None
    return open_blob(own.watermark, own.watermark_options)
