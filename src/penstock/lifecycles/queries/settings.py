"""What `penstock.toml` says of recurring queries: `[queries]`, the clients they ask, the queries, and the sheet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from penstock.connectors.feed_jsonl import EVERY_FILE
from penstock.connectors.feed_jsonl import parameters as feed_jsonl
from penstock.connectors.infojobs import parameters as infojobs
from penstock.connectors.rest_json import asking as rest_json
from penstock.connectors.rest_json.settings import REST_EXAMPLE, RestSettings
from penstock.lifecycles.queries.key import query_key
from penstock.settings.reader import shown_key
from penstock.settings.typed import Hours, Secret, Settings, TimeZone, Url, says

RUN_GATE = "queries/run"
"""The run lock: a gate with one place. Whoever is through it runs a query; everybody else waits."""
EARLIEST = date(1990, 1, 1)
"""No provider lists older days."""
_MANY = 1_000_000
_LEAST_PAUSE = 8
"""Hours over midnight are a night, which leaves out as many hours at least; with fewer, two times were swapped."""


class InfojobsSettings(Settings):
    """`[queries.infojobs.*]`: one application at InfoJobs."""

    url: Annotated[Url, says("Where the API is served.")] = Url("https://api.infojobs.net")
    client_id: Annotated[str, says("The application's id.", examples=["your-client-id"])]
    client_secret: Annotated[Secret, says("Its secret.", examples=[{"env": "INFOJOBS_CLIENT_SECRET"}])]
    page_size: Annotated[int, says("Offers per page.", ge=10, le=50)] = 50
    requests_per_second: Annotated[
        float, says("How fast the API may be called; 0 means no limit. [gates] takes precedence.", ge=0, le=1_000)
    ] = 1.0
    time_zone: Annotated[TimeZone, says("The time zone in which days begin.")] = TimeZone("Europe/Madrid")


class FeedSettings(Settings):
    """`[queries.feed_jsonl.*]`: offers in a folder of JSON-lines files."""

    folder: Annotated[Path, says("Where the files are: *.jsonl, one offer per line.", examples=["feed"])]
    page_size: Annotated[int, says("Offers per page.", ge=1, le=5_000)] = 1_000
    time_zone: Annotated[TimeZone, says("The time zone in which days begin.")] = TimeZone("UTC")


ClientSettings = InfojobsSettings | FeedSettings | RestSettings


class QuerySettings(Settings):
    """`[queries.queries.*]`: one search that is made again and again."""

    client: Annotated[str, says("Which client is asked.", examples=["infojobs"])]
    parameters: Annotated[
        dict[str, Any],
        says(
            "What is searched for. Another search is another query, with a history of its own.",
            examples=[{"q": "python"}],
        ),
    ] = {}
    horizon: Annotated[
        timedelta | None, says("How far back it is seeded, counted from its first run; by default as [queries] says.")
    ] = None
    seed_from: Annotated[
        date | None, says("The oldest day to seed, instead of a horizon.", examples=["2026-01-01"])
    ] = None
    max_pages: Annotated[int | None, says("The most pages per run; by default as [queries] says.", ge=2, le=_MANY)] = (
        None
    )
    max_offers: Annotated[
        int | None, says("The most offers per run; by default as [queries] says.", ge=1, le=10 * _MANY)
    ] = None
    paused: Annotated[bool, says("Do not run it; what is there stays.")] = False

    def __post_init__(self) -> None:
        if self.horizon is not None and self.seed_from is not None:
            raise ValueError("has both 'horizon' and 'seed_from'; give one of them")
        if self.seed_from is not None and self.seed_from < EARLIEST:
            raise ValueError(f"seed_from: {self.seed_from} is before {EARLIEST}, which no provider lists")


class SheetSettings(Settings):
    """`[queries.sheet]`: a spreadsheet with companies and offers, and people's feedback on them."""

    spreadsheet_id: Annotated[str, says("The spreadsheet's id, from its address.", examples=["1AbC"])]
    credentials: Annotated[
        Secret, says("A service account's key, as JSON.", examples=[{"file": "service-account.json"}])
    ]
    url: Annotated[Url, says("Where the API is served.")] = Url("https://sheets.googleapis.com")
    companies_tab: Annotated[str, says("The tab of companies.")] = "Companies"
    offers_tab: Annotated[str, says("The tab of offers.")] = "Offers"
    offers_for: Annotated[timedelta, says("Offers that were not seen for longer than this are not added.")] = timedelta(
        days=30
    )
    hours: Annotated[Hours, says("The hours in which the sheet is read and written.")] = Hours("03:00-06:00")
    time_zone: Annotated[TimeZone, says("The time zone of 'hours'.")] = TimeZone("Europe/Madrid")
    every: Annotated[timedelta, says("How often the sheet is synchronised within these hours.")] = timedelta(minutes=30)
    requests_per_minute: Annotated[
        float, says("The most reads, and the most writes, per minute; 0 means no limit.", ge=0, le=10_000)
    ] = 60.0

    def __post_init__(self) -> None:
        opens, closes = (time.fromisoformat(moment) for moment in self.hours.split("-"))
        if opens > closes and opens.hour - closes.hour < _LEAST_PAUSE:
            turned = f"{closes:%H:%M}-{opens:%H:%M}"
            raise ValueError(
                f"hours: {self.hours} ends before it starts: over midnight it would be nearly the whole day;"
                f" write {turned}, or leave out {_LEAST_PAUSE} hours at least"
            )


class QueriesSettings(Settings):
    """`[queries]`: recurring searches, one at a time."""

    pause: Annotated[timedelta, says("The least time between the starts of two runs of a query.")] = timedelta(
        minutes=15
    )
    horizon: Annotated[timedelta, says("How far back a new query is seeded.")] = timedelta(days=90)
    max_pages: Annotated[int, says("The most pages per run; the next run continues from there.", ge=2, le=_MANY)] = 200
    max_offers: Annotated[int, says("The most offers per run.", ge=1, le=10 * _MANY)] = 100_000
    overlap: Annotated[
        timedelta, says("How far each run reads again into what was read: providers list some offers late.")
    ] = timedelta(hours=2)
    census_every: Annotated[
        timedelta | None,
        says("How often the whole list is read again, to find offers that were closed.", never=True),
    ] = timedelta(days=7)
    most_closed: Annotated[
        float,
        says(
            "The share of a query's offers that may vanish at once; more are closed if missing a census later.",
            ge=0,
            le=1,
        ),
    ] = 0.5
    silent_after: Annotated[timedelta, says("Alert when a query that had results has had none for this long.")] = (
        timedelta(days=3)
    )
    client_pause: Annotated[
        timedelta, says("How long a client rests after it limited the rate of calls, unless it asks for longer.")
    ] = timedelta(hours=6)
    repost_within: Annotated[timedelta, says("The most time between an offer and its repost under another id.")] = (
        timedelta(days=30)
    )
    keep_runs: Annotated[timedelta, says("How long the rows of runs, and records that were set aside, are kept.")] = (
        timedelta(days=400)
    )
    infojobs: Annotated[dict[str, InfojobsSettings], says("Clients of InfoJobs, by name.", examples=["infojobs"])] = {}
    feed_jsonl: Annotated[dict[str, FeedSettings], says("Folders of offers, by name.")] = {}
    rest_json: Annotated[
        dict[str, RestSettings], says("Other JSON APIs, by name.", examples={"jobs_api": REST_EXAMPLE})
    ] = {}
    queries: Annotated[dict[str, QuerySettings], says("The queries, by name.", examples=["python-madrid"])] = {}
    sheet: Annotated[SheetSettings | None, says("A spreadsheet to write to.")] = None

    def __post_init__(self) -> None:
        if wrong := [*self._client_faults(), *self._query_faults()]:
            raise ValueError("\n".join(wrong))

    def _client_faults(self) -> Iterator[str]:
        for name in {*self.infojobs} & {*self.feed_jsonl} | {*self.infojobs, *self.feed_jsonl} & {*self.rest_json}:
            yield f"two clients are called {name!r}; rename one of them"
        owners: dict[str, str] = {}
        for name, own in self.rest_json.items():
            if own.table is None:
                continue
            if own.table in owners:
                first = owners[own.table]
                yield f"rest_json.{name}.table: {own.table!r} is the table of {first!r} already; give it another name"
            owners.setdefault(own.table, name)

    def _query_faults(self) -> Iterator[str]:
        keys: dict[str, str] = {}
        clients = self.clients()
        for name, own in self.queries.items():
            place = shown_key(("queries", name))
            if own.client not in clients:
                known = ", ".join(sorted(clients)) or "none"
                yield f"{place}: there is no client {own.client!r}; there are: {known}"
                continue
            try:
                key = self.key_of(own)
            except ValueError as error:
                yield f"{place}.parameters: {error}"
                continue
            if key in keys:
                yield f"{place} asks the same as {keys[key]!r}; remove one of them"
            keys.setdefault(key, name)
            for fault in _faults(clients[own.client], own.parameters):
                yield f"{place}.parameters: {fault}"

    def clients(self) -> Mapping[str, ClientSettings]:
        """Every client, by its name."""
        return {**self.infojobs, **self.feed_jsonl, **self.rest_json}

    def key_of(self, query: QuerySettings) -> str:
        """The key of a query. Raises ValueError for parameters that cannot be normalised."""
        client = self.clients()[query.client]
        named: dict[str, Any] = {"defaults": {"files": EVERY_FILE}} if isinstance(client, FeedSettings) else {}
        if isinstance(client, RestSettings):
            named = {"defaults": client.defaults, "ordered": client.ordered, "path": client.path}
        return query_key(query.client, query.parameters, **named)


def _faults(client: ClientSettings, parameters: Mapping[str, Any]) -> list[str]:
    """What a client would refuse of the parameters of a query."""
    if isinstance(client, InfojobsSettings):
        return infojobs.check(parameters)
    return feed_jsonl.check(parameters) if isinstance(client, FeedSettings) else rest_json.check(client, parameters)


def client_gate(client: str) -> str:
    """The gate of a client's calls. Wrong credentials stop all below the first two parts of its name: one client."""
    return f"queries/client-{quote(client, safe='')}"


def query_gate(key: str) -> str:
    """The gate of one query, which nobody but a person closes."""
    return f"queries/only/{quote(key, safe='')}"
