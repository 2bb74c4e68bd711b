"""The source `google_ads`: partitions whose rows are the answer to a query of the configuration."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock.connectors.google_ads.client import Endpoint, GoogleAds, Query
from penstock.connectors.google_ads.customer import customer_digits
from penstock.connectors.google_ads.errors import CustomerRefused, CustomerThrottled
from penstock.connectors.oauth import Credentials
from penstock.lifecycles.partitions.flow import Landing, partitions_app
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import Rejected, StepError, UsageError
from penstock.raw.paths import PartitionKey
from penstock.settings import setting as kind
from penstock.settings.config import Config
from penstock.settings.setting import ConfigError, Setting

SOURCE = "google_ads"
_NEEDED = ("client_id", "client_secret", "refresh_token")
_USUAL = Endpoint()
_PROJECT = re.compile(r"([0-9]+)[-.]")


def _customer(value: Any) -> str:
    try:
        return customer_digits(value)
    except (UsageError, AttributeError):
        raise ValueError('a customer id, for example "123-456-7890"') from None


def _version(value: Any) -> str:
    try:
        return Endpoint(version=value).version
    except (UsageError, TypeError):
        raise ValueError('a version of the API, for example "v26"') from None


SETTINGS = (
    Setting("google_ads.client_id", kind.text, None, "The OAuth client; its Google Cloud project has the quota."),
    Setting("google_ads.client_secret", kind.secret, None, "Its secret."),
    Setting("google_ads.refresh_token", kind.secret, None, "The token that opens the customers."),
    Setting("google_ads.login_customer_id", _customer, None, "The manager through which the customers are reached."),
    Setting("google_ads.version", _version, _USUAL.version, "The version of the API; each lives about a year."),
    Setting("google_ads.api_url", kind.text, _USUAL.api_url, "Where the API is served."),
    Setting("google_ads.token_url", kind.text, _USUAL.token_url, "Where tokens are."),
    Setting(
        "partitions.*.queries.*.gaql",
        kind.text,
        None,
        "The query that a partition of google_ads is the answer to; {date} in it is the partition's date.",
    ),
)


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
            raise Rejected(f"{SOURCE} has no query {key.query_name!r}; set its gaql in [partitions.{SOURCE}.queries]")
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


def read_queries(config: Config) -> dict[str, Query]:
    """The queries, by name. Raises ConfigError with every one that is missing or wrong."""
    specs: dict[str, dict[str, Any]] = {}
    for place, value in config.values.items():
        if place[:3] == ("partitions", SOURCE, "queries"):
            specs.setdefault(place[3], {})[place[4]] = value
    found, errors = {}, []
    for name, spec in specs.items():
        where = f"{config.path or 'the configuration'}: partitions.{SOURCE}.queries.{name}.gaql"
        try:
            if spec["gaql"] is None:
                errors.append(f"{where} is missing; it is a query in GAQL")
            else:
                found[name] = Query(name, spec["gaql"], spec["schema_version"], spec["fields"])
        except UsageError as error:
            errors.append(f"{where}: {error}")
    if errors:
        raise ConfigError("\n".join(sorted(errors)))
    return found


def make_extractors(config: Config, clock: Clock | None = None) -> dict[str, GoogleAdsExtractor]:
    """The extractor of a configuration; none where it has no such source. Raises ConfigError for what it lacks."""
    if SOURCE not in config.section("partitions"):
        return {}
    given = {name: config[f"google_ads.{name}"] for name in _NEEDED}
    if missing := [f"google_ads.{name}" for name, value in given.items() if value is None]:
        msg = (
            f"{config.path or 'the configuration'}: {', '.join(missing)} is missing, and [partitions.{SOURCE}] needs it"
        )
        raise ConfigError(msg)
    place = Endpoint(*(config[f"google_ads.{name}"] for name in ("api_url", "token_url", "version")))
    ads = GoogleAds(
        Credentials(**given),
        clock or SystemClock(),
        endpoint=place,
        login_customer_id=config["google_ads.login_customer_id"],
    )
    return {SOURCE: GoogleAdsExtractor(ads, read_queries(config))}


app = partitions_app(make_extractors, settings=SETTINGS)
