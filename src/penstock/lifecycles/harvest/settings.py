"""What `penstock.toml` says of harvests: `[harvest]`, and a feed for each catalogue, `[harvest.feeds.NAME]`."""

from __future__ import annotations

import re
from datetime import time, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

from penstock.lifecycles.harvest.run.machine import RunType
from penstock.lifecycles.harvest.run.scan import Split
from penstock.settings.typed import Place, Secret, Settings, TimeZone, Url, says

PROVIDER = "nivoda"
_MANY = 1_000_000
_LARGEST_PAGE = 50
_UPDATED = re.compile(r"(diamond\.)?(?!(?:id|diamond)$)[_A-Za-z][_0-9A-Za-z]{0,63}")


class FeedSettings(Settings):
    """`[harvest.feeds.*]`: one catalogue of one login."""

    url: Annotated[Url, says("Where the API is served.", examples=["https://integrations.nivoda.net/api/diamonds"])] = (
        Url("https://integrations.nivoda.net/api/diamonds")
    )
    username: Annotated[str, says("The login.", examples=["buyer@example.com"])]
    password: Annotated[Secret, says("Its password.", examples=[{"env": "NIVODA_PASSWORD"}])]
    authentication: Annotated[
        Literal["bearer", "as"], says("How the token is sent: in a header (bearer), or in every query (as).")
    ] = "bearer"
    token_life: Annotated[timedelta, says("How long a token is valid, where the login does not say.")] = timedelta(
        hours=6
    )
    price_unit: Annotated[
        Literal["cents", "dollars"],
        says("The unit of the API's prices; to be sure, compare one with the provider's own pages."),
    ] = "cents"
    price_bounds: Annotated[
        Literal["exact", "whole"], says("Whether filters compare prices to the cent, or in whole dollars.")
    ] = "exact"
    updated_field: Annotated[
        str | None,
        says("The field of an item that says when it was last updated.", examples=["diamond.updated_at"]),
    ] = None
    filters: Annotated[
        dict[str, Any], says("Filters that are sent with every query.", examples=[{"labgrown": False}])
    ] = {}
    requests_per_second: Annotated[
        float,
        says("How fast the API may be called; 0 means no limit. [gates.nivoda] takes precedence.", ge=0, le=100_000),
    ] = 25.0
    watermark: Annotated[
        Place | None,
        says(
            "Where the watermark is published: a file, or an address of s3, gs or az. Without it, nowhere.",
            examples=["watermark.json"],
        ),
    ] = None
    watermark_options: Annotated[
        dict[str, str | Secret],
        says(
            "Options for reaching the watermark's store; without them, its usual environment variables.",
            examples=[{"aws_region": "eu-west-1"}],
        ),
    ] = {}
    paused: Annotated[bool, says("Fetch nothing; what is there stays.")] = False
    every: Annotated[timedelta | None, says("How often a run is started; either this or 'at'.")] = None
    at: Annotated[
        tuple[time, ...] | None,
        says(
            "At which times of day a run is started; 02:00 if neither this nor 'every' is given.",
            filled=True,
            examples=[["02:00"]],
        ),
    ] = None
    time_zone: Annotated[TimeZone, says("The time zone of 'at'.", examples=["Europe/Madrid"])] = TimeZone("UTC")

    def __post_init__(self) -> None:
        wrong = []
        if self.every is not None and self.at is not None:
            wrong.append("has both 'every' and 'at'; give one of them")
        if self.updated_field is not None and not _UPDATED.fullmatch(self.updated_field):
            wrong.append("updated_field must be a field of an item, such as updated_at or diamond.updated_at")
        if wrong:
            raise ValueError("\n".join(wrong))


class HarvestSettings(Settings):
    """`[harvest]`: how catalogues are split, fetched and consolidated."""

    page_size: Annotated[int, says("Records per page; one more is asked for.", ge=1, le=_LARGEST_PAGE - 1)] = 30
    target_records: Annotated[
        int, says("Records per partition, until there are too many partitions.", ge=1, le=_MANY)
    ] = 5_000
    least_records: Annotated[int, says("The fewest records per partition, if there are enough.", ge=1, le=_MANY)] = (
        1_000
    )
    full_workers: Annotated[int, says("The most partitions of a full run.", ge=1, le=1_000)] = 30
    incremental_workers: Annotated[int, says("The most partitions of an incremental run.", ge=1, le=1_000)] = 10
    tolerance: Annotated[float, says("The share of a partition that may be missing when it is done.", ge=0, le=1)] = (
        0.005
    )
    rescans: Annotated[
        int, says("How often a partition is fetched again because records may be missing.", ge=0, le=100)
    ] = 2
    extra_pages: Annotated[
        int,
        says(
            "How many pages past its count a partition is read, and how often it steps back because records moved.",
            ge=1,
            le=10_000,
        ),
    ] = 20
    overlap: Annotated[timedelta, says("How long before the watermark a window begins.")] = timedelta(minutes=10)
    full_every: Annotated[timedelta, says("How often a full run is made.")] = timedelta(days=7)
    chunk_rows: Annotated[int, says("Raw rows that are consolidated by one commit.", ge=1, le=5_000)] = 2_500
    chunks_at_once: Annotated[int, says("Chunks that one worker holds at once.", ge=1, le=64)] = 4
    most_rejected: Annotated[
        float, says("The share of records that may be impossible to map; with more, a run fails.", ge=0, le=1)
    ] = 0.01
    most_deleted: Annotated[
        float, says("The share of live records that a full run may miss; if it misses more, it fails.", ge=0, le=1)
    ] = 0.5
    keep_raw: Annotated[timedelta, says("How long raw records stay after their run is over.")] = timedelta(days=30)
    feeds: Annotated[
        dict[str, FeedSettings], says("The catalogues that are harvested, by name.", examples=["diamonds"])
    ] = {}

    def split(self, run_type: RunType) -> Split:
        """How finely a run of that type is cut."""
        most = self.full_workers if run_type is RunType.FULL else self.incremental_workers
        return Split(self.target_records, self.least_records, most)


def gate_of(feed: str) -> str:
    """The gate of a feed's calls."""
    return f"{PROVIDER}/{quote(feed, safe='')}"


def schedule_of(feed: str) -> str:
    """The schedule that starts a feed's runs; whoever reopens one takes it too, so that no two are ever under way."""
    return f"harvest-{feed}"


def reprice_schedule_of(feed: str) -> str:
    """The schedule that has a feed's records priced again."""
    return f"reprice-{feed}"
