"""The source `google_ads`: partitions whose rows are the answer to a query of the configuration."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from urllib.parse import quote

from penstock.connectors.google_ads.client import GoogleAds, Query
from penstock.connectors.google_ads.endpoint import Endpoint
from penstock.connectors.google_ads.errors import CustomerRefused, CustomerThrottled
from penstock.connectors.oauth import Credentials
from penstock.lifecycles.partitions.flow import Landing
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.model.clock import Clock
from penstock.model.errors import Rejected, StepError, UsageError
from penstock.raw.paths import PartitionKey
from penstock.settings.typed import ConfigError

SOURCE = "google_ads"
_NEEDED = ("client_id", "client_secret", "refresh_token")
_PROJECT = re.compile(r"([0-9]+)[-.]")


def project_gate(client_id: str) -> str:
    """The gate that all customers of a login share: Google counts calls by the project that the OAuth client is of.

    A client's id begins with the number of its project; where it does not, the client has a gate of its own.
    """
    project = _PROJECT.match(client_id)
    return f"{SOURCE}/project-{project[1] if project else quote(client_id, safe='')}"


class GoogleAdsExtractor:
    """Lands the answer to a partition's query, as Google gives it."""

    def __init__(self, ads: GoogleAds, queries: Mapping[str, Query]) -> None:
        self._ads = ads
        self._gate = project_gate(ads.client_id)
        self._queries = queries

    async def extract(self, key: PartitionKey, run_id: str, sink: Landing) -> None:  # noqa: ARG002 - one shape
        """Write every row. The query and the version of the API are kept in the facts of the run."""
        query = self._queries.get(key.query_name)
        if query is None:
            where = f"partitions.sources.{SOURCE}.queries.{key.query_name}"
            raise Rejected(f"{SOURCE} has no query {key.query_name!r}; set its gaql in [{where}]")
        gaql = query.text(key.logical_date)
        sink.facts.update(gaql=gaql, api_version=self._ads.endpoint.version)
        refused: StepError | None = None
        async with sink.gate(self._gate):
            try:
                await self._land(key.customer_id, gaql, query, sink)
            except (CustomerThrottled, CustomerRefused) as error:
                refused = error  # this customer's own: its own gate is closed by it, and not the project's
        if refused is not None:
            raise refused

    async def _land(self, customer_id: str, gaql: str, query: Query, sink: Landing) -> None:
        async with contextlib.aclosing(self._ads.search_stream(customer_id, gaql, query.fields)) as batches:
            async for batch in batches:
                await sink.write(batch)

    async def close(self) -> None:
        await self._ads.close()


def read_queries(settings: PartitionSettings) -> dict[str, Query]:
    """The queries, by name. Raises ConfigError with every one that is missing or wrong."""
    found, errors = {}, []
    for name, query in settings.source(SOURCE).queries.items():
        where = f"partitions.sources.{SOURCE}.queries.{name}.gaql"
        try:
            if query.gaql is None:
                errors.append(f"{where} is missing; write the query in GAQL")
            else:
                found[name] = Query(name, query.gaql, query.schema_version, query.fields)
        except UsageError as error:
            errors.append(f"{where}: {error}")
    if errors:
        raise ConfigError("\n".join(sorted(errors)))
    return found


def make_extractors(settings: PartitionSettings, clock: Clock) -> dict[str, GoogleAdsExtractor]:
    """The extractor of the source google_ads, where there is one. Raises ConfigError for what it lacks."""
    if SOURCE not in settings.sources:
        return {}
    login = settings.google_ads
    if login.client_id is None or login.client_secret is None or login.refresh_token is None:
        missing = [name for name in _NEEDED if getattr(login, name) is None]
        msg = f"the source {SOURCE} needs {', '.join(missing)}; set it in [partitions.{SOURCE}]"
        raise ConfigError(msg)
    ads = GoogleAds(
        Credentials(login.client_id, login.client_secret, login.refresh_token),
        clock,
        endpoint=Endpoint(login.api_url, login.token_url, login.version),
        login_customer_id=login.login_customer_id,
    )
    return {SOURCE: GoogleAdsExtractor(ads, read_queries(settings))}
