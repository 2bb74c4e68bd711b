"""The clients of a configuration: connectors wired to settings, each with the place that its records go to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.connectors.searches import Batch, Client
from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.queries.offer_store import OfferStore
from penstock.lifecycles.queries.registry import Configured
from penstock.lifecycles.queries.settings import FeedSettings, InfojobsSettings, QueriesSettings
from penstock.lifecycles.queries.store import Store
from penstock.model.outcome import Write

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.connectors.rest_json.settings import RestSettings
    from penstock.worker.flow import Io


class Source:
    """A client, and where its records go."""

    def __init__(self, client: Client, store: Store, *, closes: Callable[[], None] = lambda: None) -> None:
        """`closes` ends what the client was lent."""
        self.client = client
        self.store = store
        self._closes = closes

    async def land(self, query: Query, own: Configured, batch: Batch, io: Io) -> Sequence[Write]:  # noqa: ARG002
        """Land a page as it came, where that is wanted; rows that say so."""
        return ()

    async def close(self) -> None:
        await self.client.close()
        self._closes()


def make_source(name: str, settings: QueriesSettings, ports: Ports) -> Source:
    """A client with connections of its own. Raises UsageError for settings that cannot be used."""
    own = settings.clients()[name]
    store = OfferStore(settings.repost_within)
    if isinstance(own, InfojobsSettings):
        from penstock.connectors.infojobs.client import InfoJobs

        client = InfoJobs(own.url, own.client_id, own.client_secret, ports.clock, page_size=own.page_size)
        return Source(client, store)
    if isinstance(own, FeedSettings):
        from penstock.connectors.feed_jsonl.client import JsonLines
        from penstock.worker.executor import ThreadExecutor

        executor = ThreadExecutor(1)
        return Source(JsonLines(own.folder, executor.run, page_size=own.page_size), store, closes=executor.close)
    return _described(name, own, store, ports)


def _described(name: str, own: RestSettings, store: Store, ports: Ports) -> Source:
    from penstock.connectors.rest_json.client import RestJson

    client = RestJson(own, ports.clock)
    if own.table is None:
        return Source(client, store)
    from penstock.lifecycles.queries.landing import LandedSource
    from penstock.lifecycles.queries.own_store import OwnStore
    from penstock.lifecycles.queries.tables import own_table

    table = own_table(own.table, {field: each.type for field, each in own.fields.items()})
    return LandedSource(name, client, OwnStore(table, list(own.fields)), ports.raw)
