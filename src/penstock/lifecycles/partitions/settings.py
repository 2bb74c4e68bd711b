"""`[partitions]`: the sources, their customers and queries, and the login for Google Ads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from functools import cached_property
from typing import Annotated, Any, Literal

from penstock.connectors.google_ads.customer import customer_digits
from penstock.connectors.google_ads.endpoint import Endpoint
from penstock.lifecycles.ladder import Ladder, offset_list, written_offsets
from penstock.lifecycles.partitions.validate import TYPES, WHOLE_ROW, check_fields
from penstock.model.cadence import local_instant, parse_zone
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.raw.paths import PartitionKey, Range
from penstock.settings.typed import Secret, Settings, TimeZone, Url, says

DAY = timedelta(days=1)
OFFSETS = tuple(days * DAY for days in (1, 3, 7, 30))
_USUAL = Endpoint()
_EXAMPLE = {
    "schema_version": "1",
    "fields": {"campaign.id": "whole"},
    "gaql": "SELECT campaign.id, segments.date FROM campaign WHERE segments.date = '{date}'",
}


def _fields(value: Any) -> dict[str, str]:
    wanted = (
        f'a table of types, for example {{ "campaign.id" = "whole" }}; a type is {", ".join(TYPES)}, or one with a ?'
    )
    if not isinstance(value, dict):
        raise ValueError(wanted)  # noqa: TRY004 - readers raise ValueError
    try:
        return check_fields(value)
    except UsageError:
        raise ValueError(wanted) from None


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


class SourceQuery(Settings):
    """`[partitions.sources.*.queries.*]`: what the rows of one query must be.

    Names of fields lead into nested objects by dots. `unique` may also be `*`, the whole row.
    """

    schema_version: Annotated[
        str, says("The version that landed data must have; only a person changes it, here.", examples=["1"])
    ]
    fields: Annotated[
        dict[str, str],
        says(
            "The fields of every row and their types; dots lead into nested objects, a ? lets a field be missing.",
            reads=_fields,
        ),
    ] = {}
    unique: Annotated[
        tuple[str, ...],
        says("The fields in which no two rows may agree; * is the whole row, an empty list allows duplicates."),
    ] = (WHOLE_ROW,)
    date_field: Annotated[str | None, says("The field that must hold the partition's own date.")] = None
    gaql: Annotated[
        str | None,
        says("For google_ads: the query that fetches a partition; {date} in it stands for its date."),
    ] = None


class Source(Settings, dict=True):
    """`[partitions.sources.*]`: what is wanted of one source."""

    customers: Annotated[
        tuple[str, ...],
        says("The customers whose partitions are extracted.", examples=[["123-456-7890"]]),
    ]
    customer_ids: Annotated[
        Literal["digits", "any"],
        says("What a customer id is: digits, from which hyphens are removed, or any text."),
    ] = "digits"
    time_zone: Annotated[
        TimeZone | None,
        says(
            "Where the days of its customers begin and end; Google Ads calls it customer.time_zone.",
            examples=["America/Los_Angeles"],
        ),
    ] = None
    time_zones: Annotated[
        dict[str, TimeZone],
        says("The same for single customers; each customer needs a time zone by one setting or the other."),
    ] = {}
    delay: Annotated[timedelta, says("How long after its end, in the customer's time zone, a day is extracted.")] = (
        timedelta(hours=3)
    )
    offsets: Annotated[
        tuple[timedelta, ...],
        says(
            "When a partition is extracted again, counted from its local midnight; never before its day is over.",
            reads=offset_list,
            writes=written_offsets,
        ),
    ] = OFFSETS
    days: Annotated[
        int, says("For how many past days the job enumerate-partitions makes extractions.", ge=1, le=3_650)
    ] = 3
    keep_last_good: Annotated[
        bool, says("Whether a good partition stays good, with an alert, when a later run is rejected.")
    ] = False
    backfill_per_hour: Annotated[
        int, says("How many partitions of a backfill fall due in an hour, for each customer.", ge=1, le=100_000)
    ] = 60
    queries: Annotated[
        dict[str, SourceQuery],
        says("What is fetched for every customer, by name.", examples={"campaign_daily": {"schema_version": "1"}}),
    ] = {}

    def __post_init__(self) -> None:
        errors: list[str] = []
        self._read_zones(errors)
        if errors:
            raise ValueError("\n".join(errors))

    @cached_property
    def zones(self) -> Mapping[str, TimeZone]:
        """The time zone of every customer, by its canonical id."""
        return self._read_zones([])

    def _read_zones(self, errors: list[str]) -> dict[str, TimeZone]:
        def canonical(text: str, where: str) -> str:
            try:
                return self.canonical(text)
            except UsageError as error:
                errors.append(f"{where}: {error}")
                return text

        customers = dict.fromkeys(canonical(text, "customers") for text in self.customers)
        own: dict[str, TimeZone] = {}
        for text, zone in self.time_zones.items():
            name = canonical(text, "time_zones")
            if own.setdefault(name, zone) != zone:
                errors.append(f"time_zones: {name} is there twice, with {own[name]} and with {zone}")
        errors += [f"time_zones: {name} is not one of the customers" for name in sorted(own.keys() - customers.keys())]
        found = {customer: own.get(customer, self.time_zone) for customer in customers}
        if missing := [customer for customer, zone in found.items() if zone is None]:
            errors.append(
                f"no time zone for customer {some(missing)}, so nobody knows when its days are over; set time_zone for"
                " all customers or time_zones for some (Google Ads shows it in the account's settings, and as"
                " customer.time_zone in a query)"
            )
        return {customer: zone for customer, zone in found.items() if zone is not None}

    def canonical(self, customer: str) -> str:
        """A customer's id as it is kept. Raises UsageError for what cannot be one."""
        return customer_digits(customer) if self.customer_ids == "digits" else customer

    def begins(self, customer: str, day: date) -> datetime:
        """The instant at which a day of one of its customers begins."""
        return local_instant(day, time(), parse_zone(self.zones[customer]))

    def ends(self, customer: str, day: date) -> datetime:
        """The instant at which it is over: 23, 24 or 25 hours later."""
        return self.begins(customer, day + DAY)

    def ladder(self, customer: str, day: date) -> Ladder:
        """When a day of one of its customers is extracted: once it is over and the delay has passed, at the soonest."""
        return Ladder(self.begins(customer, day), self.offsets, self.ends(customer, day) + self.delay)

    def refuse_unfinished(self, customers: Iterable[str], day: date, now: datetime) -> None:
        """Raises UsageError where a day is not over yet for one of some customers."""
        for customer in customers:
            ends = self.ends(customer, day)
            if ends > now:
                zone = self.zones[customer]
                msg = f"{day} is not over yet for customer {customer}: it ends at {instant_text(ends)} ({zone})"
                raise UsageError(msg)


class GoogleAdsLogin(Settings):
    """`[partitions.google_ads]`: the login that opens the customers of the source google_ads."""

    client_id: Annotated[str | None, says("The OAuth client; its Google Cloud project has the quota.")] = None
    client_secret: Annotated[Secret | None, says("The client's secret.")] = None
    refresh_token: Annotated[Secret | None, says("The token that gives access to the customers.")] = None
    login_customer_id: Annotated[
        str | None,
        says(
            "The manager account through which the customers are reached.", reads=_customer, examples=["999-999-9999"]
        ),
    ] = None
    version: Annotated[str, says("The version of the API; each lives about a year.", reads=_version)] = _USUAL.version
    api_url: Annotated[Url, says("Where the API is served.")] = Url(_USUAL.api_url)
    token_url: Annotated[Url, says("Where tokens are issued.")] = Url(_USUAL.token_url)


class PartitionSettings(Settings):
    """`[partitions]`. A lifecycle with sources of its own may add settings to it by inheritance."""

    sources: Annotated[
        dict[str, Source],
        says(
            "Where data comes from, by name.",
            examples={
                "google_ads": {
                    "customers": ["123-456-7890"],
                    "time_zone": "America/Los_Angeles",
                    "queries": {"campaign_daily": _EXAMPLE},
                }
            },
        ),
    ] = {}
    google_ads: Annotated[GoogleAdsLogin, says("The login for the source google_ads.")] = GoogleAdsLogin()

    def source(self, name: str) -> Source:
        """A source that is configured. Raises UsageError."""
        if name not in self.sources:
            msg = f"no source is called {name!r}; configured are {some(tuple(self.sources))}"
            raise UsageError(msg)
        return self.sources[name]

    def customer(self, source: str, text: str) -> str:
        """The canonical id of a source's customer. Raises UsageError for one that it does not have."""
        found = self.source(source).canonical(text)
        known = self.source(source).zones
        if found not in known:
            raise UsageError(f"{source} has no customer {text}; configured are {some(tuple(known))}")
        return found

    def query(self, source: str, name: str) -> SourceQuery:
        """A query of a source. Raises UsageError for one that it does not have."""
        known = self.source(source).queries
        if name not in known:
            raise UsageError(f"{source} has no query {name!r}; configured are {some(tuple(known))}")
        return known[name]

    def key(self, text: str) -> PartitionKey:
        """A partition as a person names it, made canonical. Raises UsageError for what is not configured."""
        key = PartitionKey.parse(text)
        customer = self.customer(key.source, key.customer_id)
        self.query(key.source, key.query_name)
        return PartitionKey(key.source, customer, key.query_name, key.logical_date)

    def ladder(self, key: PartitionKey) -> Ladder | None:
        """When a partition is extracted; None for one that is not configured (any more)."""
        source = self.sources.get(key.source)
        if source is None or key.customer_id not in source.zones or key.query_name not in source.queries:
            return None
        return source.ladder(key.customer_id, key.logical_date)

    def wanted(self, now: datetime) -> list[Range]:
        """What the daily work wants: the last days that are over, with the delay, where each customer is."""
        found = []
        for name, source in self.sources.items():
            over: dict[date, list[str]] = {}
            for customer, zone in source.zones.items() if source.queries else ():
                today = (now - source.delay).astimezone(parse_zone(zone)).date()
                over.setdefault(today - DAY, []).append(customer)
            found += [
                Range(name, tuple(customers), tuple(source.queries), last - (source.days - 1) * DAY, last)
                for last, customers in over.items()
            ]
        return found


def some(names: Iterable[str], most: int = 5) -> str:
    """The first few of some names, and how many more there are."""
    known = list(names)
    shown = ", ".join(known[:most]) or "none"
    return f"{shown} and {len(known) - most:,} more" if len(known) > most else shown
