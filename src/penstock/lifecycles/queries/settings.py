"""What `penstock.toml` says of recurring queries: `[queries]`, the clients they ask, the queries, and the sheet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from penstock.connectors.rest_json.settings import REST_EXAMPLE, RestSettings
from penstock.lifecycles.queries.key import query_key
from penstock.settings.typed import Hours, Secret, Settings, TimeZone, Url, says

RUN_GATE = "queries/run"
"""The run lock: a gate with one place. Whoever is through it runs a query; everybody else waits."""
_MANY = 1_000_000
_OLDEST = date(1900, 1, 1)


class InfojobsSettings(Settings):
    """`[queries.infojobs.*]`: one application at InfoJobs."""

    url: Annotated[Url, says("Where the API is served.")] = Url("https://api.infojobs.net")
    client_id: Annotated[str, says("The application's id.", examples=["your-client-id"])]
    client_secret: Annotated[Secret, says("Its secret.", examples=[{"env": "INFOJOBS_CLIENT_SECRET"}])]
    page_size: Annotated[int, says("Offers per page.", ge=10, le=50)] = 50
    requests_per_second: Annotated[
        float, says("How fast the API may be called; 0 means no limit. [gates] takes precedence.", ge=0, le=1_000)
    ] = 1.0
    time_zone: Annotated[TimeZone, says("In which time zone days begin.")] = TimeZone("Europe/Madrid")


class FeedSettings(Settings):
    """`[queries.feed_jsonl.*]`: offers in a folder of JSON-lines files."""

    folder: Annotated[Path, says("Where the files are: *.jsonl, one offer per line.", examples=["feed"])]
    page_size: Annotated[int, says("Offers per page.", ge=1, le=5_000)] = 1_000
    time_zone: Annotated[TimeZone, says("In which time zone days begin.")] = TimeZone("UTC")


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
        timedelta | None, says("How far back it is seeded, from its first run on; else as [queries] says.")
    ] = None
    seed_from: Annotated[
        date | None, says("The oldest day that is seeded, instead of a horizon.", examples=["2026-01-01"])
    ] = None
    max_pages: Annotated[int | None, says("Pages per run; else as [queries] says.", ge=1, le=_MANY)] = None
    max_offers: Annotated[int | None, says("Offers per run; else as [queries] says.", ge=1, le=10 * _MANY)] = None
    paused: Annotated[bool, says("Do not run it; what is there stays.")] = False

    def __post_init__(self) -> None:
        if self.horizon is not None and self.seed_from is not None:
            raise ValueError("has both 'horizon' and 'seed_from'; give one of them")
        if self.seed_from is not None and self.seed_from < _OLDEST:
            raise ValueError(f"seed_from = {self.seed_from} lies before {_OLDEST}, the oldest day that is read")


class SheetSettings(Settings):
    """`[queries.sheet]`: a spreadsheet with companies and offers, and people's feedback on them."""

    spreadsheet_id: Annotated[str, says("The spreadsheet's id, from its address.", examples=["1AbC"])]
    credentials: Annotated[
        Secret, says("A service account's key, as JSON.", examples=[{"file": "service-account.json"}])
    ]
    url: Annotated[Url, says("Where the API is served.")] = Url("https://sheets.googleapis.com")
    companies_tab: Annotated[str, says("The tab of companies.")] = "Companies"
    offers_tab: Annotated[str, says("The tab of offers.")] = "Offers"
    offers_for: Annotated[timedelta, says("Offers that were last seen longer ago are not added.")] = timedelta(days=30)
    hours: Annotated[Hours, says("The hours in which the sheet is read and written.")] = Hours("03:00-06:00")
    time_zone: Annotated[TimeZone, says("The time zone of 'hours'.")] = TimeZone("Europe/Madrid")
    every: Annotated[timedelta, says("How often the sheet is synchronised within these hours.")] = timedelta(minutes=30)
    requests_per_minute: Annotated[
        float, says("How many reads, and how many writes, are made in a minute; 0 means no limit.", ge=0, le=10_000)
    ] = 60.0


class QueriesSettings(Settings):
    """`[queries]`: recurring searches, one at a time."""

    pause: Annotated[
        timedelta, says("The shortest time from the beginning of one run of a query to that of its next.")
    ] = timedelta(minutes=15)
    horizon: Annotated[timedelta, says("How far back a new query is seeded.")] = timedelta(days=90)
    max_pages: Annotated[int, says("Pages per run; the next run goes on where one stopped.", ge=1, le=_MANY)] = 200
    max_offers: Annotated[int, says("Offers per run.", ge=1, le=10 * _MANY)] = 100_000
    overlap: Annotated[timedelta, says("How much of what was read is read again: providers list offers late.")] = (
        timedelta(hours=2)
    )
    census_every: Annotated[
        timedelta | None,
        says("How often everything is listed again, to find what was closed; or 'never'.", never=True),
    ] = timedelta(days=7)
    most_closed: Annotated[
        float,
        says(
            "The share of a query's offers that may vanish at once; if more do, they are closed a census later.",
            ge=0,
            le=1,
        ),
    ] = 0.5
    silent_after: Annotated[
        timedelta, says("A query that once had results and has had none for this long is told as an alert.")
    ] = timedelta(days=3)
    client_pause: Annotated[timedelta, says("How long a client rests that has limited the rate of calls.")] = timedelta(
        hours=6
    )
    repost_within: Annotated[
        timedelta, says("An offer like an earlier one under another id is a repost of it, within this time.")
    ] = timedelta(days=30)
    keep_runs: Annotated[timedelta, says("How long the records of runs are kept.")] = timedelta(days=400)
    infojobs: Annotated[dict[str, InfojobsSettings], says("Clients of InfoJobs, by name.", examples=["infojobs"])] = {}
    feed_jsonl: Annotated[dict[str, FeedSettings], says("Folders of offers, by name.")] = {}
    rest_json: Annotated[
        dict[str, RestSettings], says("Other JSON APIs, by name.", examples={"jobs_api": REST_EXAMPLE})
    ] = {}
    queries: Annotated[dict[str, QuerySettings], says("The queries, by name.", examples=["python-madrid"])] = {}
    sheet: Annotated[SheetSettings | None, says("A spreadsheet to write to.")] = None

    def __post_init__(self) -> None:
        wrong = [
            f"two clients are called {name!r}; rename one of them"
            for name in {*self.infojobs} & {*self.feed_jsonl} | {*self.infojobs, *self.feed_jsonl} & {*self.rest_json}
        ]
        keys: dict[str, str] = {}
        for name, own in self.queries.items():
            if own.client not in self.clients():
                known = ", ".join(sorted(self.clients())) or "none"
                wrong.append(f"queries.{name}: there is no client {own.client!r}; there are: {known}")
            try:
                key = query_key(own.client, own.parameters)
            except ValueError as error:
                wrong.append(f"queries.{name}.parameters: {error}")
                continue
            if key in keys:
                wrong.append(f"queries.{name} asks the same as queries.{keys[key]}; remove one of them")
            keys.setdefault(key, name)
        if wrong:
            raise ValueError("\n".join(wrong))

    def clients(self) -> Mapping[str, InfojobsSettings | FeedSettings | RestSettings]:
        """Every client, by its name."""
        return {**self.infojobs, **self.feed_jsonl, **self.rest_json}


def client_gate(client: str) -> str:
    """The gate of a client's calls. Wrong credentials stop all below the first two parts of its name: one client."""
    return f"queries/client-{quote(client, safe='')}"


def query_gate(key: str) -> str:
    """The gate of one query, which nobody but a person closes."""
    return f"queries/only/{quote(key, safe='')}"
