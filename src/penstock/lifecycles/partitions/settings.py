"""What a configuration says of partitions: which are wanted of which source, and what they must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from typing import Any

from penstock.connectors.google_ads.customer import customer_digits
from penstock.lifecycles.ladder import Ladder, offset_list, offset_name
from penstock.lifecycles.partitions.validate import TYPES, WHOLE_ROW, Schema, check_fields
from penstock.model.cadence import local_instant, parse_span, parse_zone
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.raw.paths import PartitionKey
from penstock.raw.reader import Range
from penstock.raw.settings import RAW_URL
from penstock.settings import setting as kind
from penstock.settings.config import Config
from penstock.settings.setting import REQUIRED, ConfigError, Setting

DAY = timedelta(days=1)
DELAY = timedelta(hours=3)
OFFSETS = tuple(days * DAY for days in (1, 3, 7, 30))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - readers raise ValueError
    return value


def _texts(wanted: str) -> Callable[[Any], list[str]]:
    def read(value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) and item.strip() for item in value):
            raise ValueError(wanted)
        return value

    return read


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


def _zones(value: Any) -> dict[str, str]:
    wanted = 'a table of time zones, for example { "123-456-7890" = "Europe/Madrid" }'
    if not isinstance(value, dict):
        raise ValueError(wanted)  # noqa: TRY004 - readers raise ValueError
    found = {}
    for customer, name in value.items():
        try:
            found[customer] = kind.zone(name)
        except ValueError as error:
            raise ValueError(f"{wanted}; that of {customer} is {name!r}, and not {error}") from None
    return found


SETTINGS = (
    RAW_URL,
    Setting(
        "partitions.*.customers",
        _texts('a list of customer ids, for example ["123-456-7890"]'),
        REQUIRED,
        "The customers of the source whose partitions are wanted.",
        examples={"google_ads": ["123-456-7890"]},
    ),
    Setting(
        "partitions.*.customer_ids",
        kind.one_of("digits", "any"),
        "digits",
        "What a customer id is: digits, from which hyphens are removed, or any text.",
    ),
    Setting(
        "partitions.*.time_zone",
        kind.zone,
        None,
        "Where the days of its customers begin and end; Google Ads calls it customer.time_zone.",
        examples={"google_ads": "America/Los_Angeles"},
    ),
    Setting(
        "partitions.*.time_zones",
        _zones,
        {},
        "The same for single customers; each customer must have a time zone by the one setting or the other.",
    ),
    Setting(
        "partitions.*.delay",
        kind.span,
        "3h",
        "How long after its end in the customer's time zone a day is wanted.",
    ),
    Setting(
        "partitions.*.offsets",
        offset_list,
        [offset_name(int(offset.total_seconds())).removeprefix("T+") for offset in OFFSETS],
        "When a partition is extracted anew, counted from its local midnight; never before its day is over.",
    ),
    Setting(
        "partitions.*.days",
        kind.whole(1, 3_650),
        3,
        "How many days that are over the job enumerate-partitions wants.",
        examples={"google_ads": 3},
    ),
    Setting(
        "partitions.*.keep_last_good",
        _flag,
        False,
        "A rejected rerun leaves a good partition as it was, with an alert, instead of making it failed.",
    ),
    Setting(
        "partitions.*.backfill_per_hour",
        kind.whole(1, 100_000),
        60,
        "How many partitions of a backfill fall due in an hour, for each customer.",
    ),
    Setting(
        "partitions.*.queries.*.schema_version",
        kind.text,
        REQUIRED,
        "The version that landed data must have; it is changed here alone, by a person.",
    ),
    Setting(
        "partitions.*.queries.*.fields",
        _fields,
        {},
        "The fields of every row and their types; dots lead into nested objects, a ? allows it to be missing.",
    ),
    Setting(
        "partitions.*.queries.*.unique",
        _texts('a list of fields, for example ["campaign.id"], ["*"] or []'),
        [WHOLE_ROW],
        "The fields in which no two rows may agree; * is the whole row, and an empty list allows duplicates.",
    ),
    Setting(
        "partitions.*.queries.*.date_field",
        kind.text,
        None,
        "The field that must hold the partition's own date.",
    ),
)


@dataclass(frozen=True, slots=True)
class Source:
    """What is wanted of one source. `time_zones` has every customer."""

    name: str
    time_zones: Mapping[str, str]
    queries: Mapping[str, Schema]
    days: int = 3
    keep_last_good: bool = False
    backfill_per_hour: int = 60
    digits: bool = True
    delay: timedelta = DELAY
    offsets: tuple[timedelta, ...] = OFFSETS

    @property
    def customers(self) -> tuple[str, ...]:
        return tuple(self.time_zones)

    def customer(self, text: str) -> str:
        """The canonical id of one of its customers. Raises UsageError for one that it does not have."""
        found = customer_digits(text) if self.digits else text
        if found not in self.time_zones:
            msg = f"{self.name} has no customer {text}; configured are {_some(self.customers)}"
            raise UsageError(msg)
        return found

    def query(self, name: str) -> str:
        """The same name, if it is one of its queries. Raises UsageError."""
        if name not in self.queries:
            msg = f"{self.name} has no query {name!r}; configured are {_some(tuple(self.queries))}"
            raise UsageError(msg)
        return name

    def begins(self, customer: str, day: date) -> datetime:
        """The instant at which a day of one of its customers begins."""
        return local_instant(day, time(), parse_zone(self.time_zones[customer]))

    def ends(self, customer: str, day: date) -> datetime:
        """The instant at which it is over: 23, 24 or 25 hours later."""
        return self.begins(customer, day + DAY)

    def ladder(self, customer: str, day: date) -> Ladder:
        """When a day of one of its customers is extracted: once it is over and the delay has passed, at the soonest."""
        return Ladder(self.begins(customer, day), self.offsets, self.ends(customer, day) + self.delay)

    def wanted(self, now: datetime) -> list[Range]:
        """What the daily work wants: the last days that are over, with the delay, where each customer is."""
        over: dict[date, list[str]] = {}
        for customer, zone in self.time_zones.items():
            today = (now - self.delay).astimezone(parse_zone(zone)).date()
            over.setdefault(today - DAY, []).append(customer)
        if not self.queries:
            return []
        return [
            Range(self.name, tuple(customers), tuple(self.queries), last - (self.days - 1) * DAY, last)
            for last, customers in over.items()
        ]

    def refuse_unfinished(self, customers: Iterable[str], day: date, now: datetime) -> None:
        """Raises UsageError where a day is not over yet for one of some customers."""
        for customer in customers:
            ends = self.ends(customer, day)
            if ends > now:
                zone = self.time_zones[customer]
                msg = f"{day} is not over yet for customer {customer}: it ends in {zone} at {instant_text(ends)}"
                raise UsageError(msg)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every source, by name."""

    sources: Mapping[str, Source] = field(default_factory=dict)
    raw_url: str = "raw"

    def source(self, name: str) -> Source:
        """A source that is configured. Raises UsageError."""
        if name not in self.sources:
            msg = f"no source {name!r} is configured; [partitions] has {_some(tuple(self.sources))}"
            raise UsageError(msg)
        return self.sources[name]

    def key(self, text: str) -> PartitionKey:
        """A partition as a person names it, made canonical. Raises UsageError for what is not configured."""
        key = PartitionKey.parse(text)
        source = self.source(key.source)
        return PartitionKey(
            source.name, source.customer(key.customer_id), source.query(key.query_name), key.logical_date
        )

    def ladder(self, key: PartitionKey) -> Ladder | None:
        """When a partition is extracted; None for one that is not configured (any more)."""
        source = self.sources.get(key.source)
        if source is None or key.customer_id not in source.time_zones or key.query_name not in source.queries:
            return None
        return source.ladder(key.customer_id, key.logical_date)


def settings_of(config: Config) -> Settings:
    """The settings in force. Raises ConfigError with every customer id and time zone that is wrong or missing."""
    queries: dict[str, dict[str, dict[str, Any]]] = {}
    for key, value in config.values.items():
        if key[0] == "partitions" and key[2:3] == ("queries",):
            queries.setdefault(key[1], {}).setdefault(key[3], {})[key[4]] = value
    errors: list[str] = []
    sources = {}
    for name, spec in config.section("partitions").items():
        schemas = {query: _schema(own) for query, own in queries.get(name, {}).items()}
        sources[name] = Source(
            name,
            _time_zones(name, spec, errors),
            schemas,
            spec["days"],
            spec["keep_last_good"],
            spec["backfill_per_hour"],
            spec["customer_ids"] == "digits",
            parse_span(spec["delay"]),
            tuple(map(parse_span, spec["offsets"])),
        )
    if errors:
        raise ConfigError("\n".join(f"{config.path or 'the configuration'}: {error}" for error in errors))
    return Settings(sources, config["raw.url"])


def _time_zones(source: str, spec: Mapping[str, Any], errors: list[str]) -> dict[str, str]:
    """The time zone of every customer."""

    def canonical(text: str, where: str) -> str:
        try:
            return customer_digits(text) if spec["customer_ids"] == "digits" else text
        except UsageError as error:
            errors.append(f"partitions.{source}.{where}: {error}")
            return text

    customers = dict.fromkeys(canonical(text, "customers") for text in spec["customers"])
    own: dict[str, str] = {}
    for text, zone in spec["time_zones"].items():
        name = canonical(text, "time_zones")
        if own.setdefault(name, zone) != zone:
            errors.append(f"partitions.{source}.time_zones: {name} is there twice, in {own[name]} and in {zone}")
    strangers = sorted(own.keys() - customers.keys())
    errors += [f"partitions.{source}.time_zones: {name} is not one of its customers" for name in strangers]
    found = {customer: own.get(customer, spec["time_zone"]) for customer in customers}
    if missing := tuple(customer for customer, zone in found.items() if zone is None):
        errors.append(
            f"partitions.{source}: customer {_some(missing)} has no time zone, and nobody could tell when a day of it"
            " is over; set time_zone for all its customers or time_zones for some (Google Ads shows it in the"
            " account's settings, and as customer.time_zone in a query)"
        )
    return found


def _schema(spec: Mapping[str, Any]) -> Schema:
    return Schema(spec["schema_version"], dict(spec["fields"]), tuple(spec["unique"]), spec["date_field"])


def _some(names: tuple[str, ...], most: int = 5) -> str:
    shown = ", ".join(names[:most]) or "none"
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
