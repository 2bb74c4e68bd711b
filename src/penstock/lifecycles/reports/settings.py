"""`[reports]`: the accounts, when their datasets are fetched, how long the provider may take, and where hours lie."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from penstock.lifecycles.ladder import optional_offset_list, written_offsets
from penstock.lifecycles.reports.machine import Aggregation
from penstock.settings.addresses import read_hosts
from penstock.settings.typed import Secret, Settings, TimeZone, Url, says

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
DAILY_OFFSETS = tuple(n * DAY for n in (1, 3, 5, 7, 14, 30, 60))
HOURLY_OFFSETS = tuple(n * HOUR for n in (24, 72, 312))
BEYOND = 2 * DAY
"""How long a dataset is kept after its last offset."""
PROVIDER, STREAM = "amazon_ads", "amazon_stream"
NO_STREAM = "reports.stream is not set; it names the folder that a consumer of the Marketing Stream fills"
_MOST = 1_000


class Account(Settings):
    """`[reports.accounts.*]`: one advertising account, by the name that its datasets have."""

    profile_id: Annotated[str, says("The advertising profile.", examples=["1234567890123"])]
    country: Annotated[str | None, says("The profile's country.", examples=["US"])] = None
    time_zone: Annotated[TimeZone, says("The time zone in which its days begin.")] = TimeZone("UTC")
    region: Annotated[Literal["NA", "EU", "FE"], says("Which of Amazon's hosts serve it.")] = "NA"
    paused: Annotated[bool, says("Create no datasets and fetch none; those that exist stay.")] = False
    api_url: Annotated[Url | None, says("The address of the API, instead of its region's.")] = None
    token_url: Annotated[Url | None, says("The address for tokens, instead of its region's.")] = None
    client_id: Annotated[str | None, says("A client of its own, instead of the one in [reports].")] = None
    client_secret: Annotated[Secret | None, says("The secret of that client.")] = None
    refresh_token: Annotated[Secret | None, says("A token of its own, instead of the one in [reports].")] = None


class ReportSettings(Settings):
    """`[reports]`."""

    daily_offsets: Annotated[
        tuple[timedelta, ...],
        says(
            "When a daily dataset is fetched again, counted from its local midnight; [] switches daily off.",
            reads=optional_offset_list,
            writes=written_offsets,
        ),
    ] = DAILY_OFFSETS
    hourly_offsets: Annotated[
        tuple[timedelta, ...],
        says(
            "When an hourly dataset is fetched again, counted from its hour; [] switches hourly off.",
            reads=optional_offset_list,
            writes=partial(written_offsets, days=False),
        ),
    ] = HOURLY_OFFSETS
    poll: Annotated[timedelta, says("How often an unfinished report is checked.")] = timedelta(minutes=5)
    cancel_after: Annotated[timedelta, says("When the provider is asked to cancel an unfinished report.")] = 6 * HOUR
    give_up_after: Annotated[
        timedelta, says("When an unfinished report that could not be cancelled counts as failed.")
    ] = 24 * HOUR
    create_limit: Annotated[int, says("How many creates may fail, per offset.", ge=1, le=_MOST)] = 3
    provider_limit: Annotated[int, says("How many reports the provider may fail, per offset.", ge=1, le=_MOST)] = 3
    pending_limit: Annotated[int, says("How many reports may take too long, per offset.", ge=1, le=_MOST)] = 3
    parse_limit: Annotated[int, says("How many reports may be unreadable, per offset.", ge=1, le=_MOST)] = 3
    link_limit: Annotated[int, says("How often a report's link may expire before it is read.", ge=1, le=_MOST)] = 3
    stream: Annotated[
        Path | None,
        says(
            "The folder of Marketing Stream deltas; hourly is off without it, and for accounts without a folder in it.",
            examples=["stream"],
        ),
    ] = None
    private_downloads: Annotated[
        tuple[str, ...], says("Hosts that reports may come from beside Amazon's, for a test server.", reads=read_hosts)
    ] = ()
    client_id: Annotated[str | None, says("The Login with Amazon client of all accounts without their own.")] = None
    client_secret: Annotated[Secret | None, says("The client's secret.")] = None
    refresh_token: Annotated[Secret | None, says("The token that gives access to the accounts.")] = None
    accounts: Annotated[
        dict[str, Account],
        says("Advertising accounts, by name.", examples=["acme"]),
    ] = {}

    def __post_init__(self) -> None:
        wrong = []
        if self.give_up_after < self.cancel_after:
            wrong.append("give_up_after must not be shorter than cancel_after")
        if not self.daily_offsets and not self.hourly_offsets:
            wrong.append("daily_offsets and hourly_offsets are both empty; one of them must have an offset")
        if wrong:
            raise ValueError("\n".join(wrong))

    def offsets(self, aggregation: Aggregation) -> Sequence[timedelta]:
        """The offsets of one kind of dataset, in order; none where it is switched off."""
        return self.daily_offsets if aggregation is Aggregation.DAILY else self.hourly_offsets

    def retention(self, aggregation: Aggregation) -> timedelta | None:
        """How long a dataset is kept after its beginning; None, for ever, while its aggregation is switched off."""
        offsets = self.offsets(aggregation)
        return offsets[-1] + BEYOND if offsets else None


def switched_off(aggregation: str) -> str:
    """What to say of an aggregation that has no offsets."""
    return f"{aggregation} is switched off: reports.{aggregation}_offsets is empty"


def gate_of(account: str, aggregation: Aggregation = Aggregation.DAILY) -> str:
    """The gate of an account's calls. Hours come from a folder: what closes the API does not stop them."""
    provider = PROVIDER if aggregation is Aggregation.DAILY else STREAM
    return f"{provider}/{quote(account, safe='')}"
