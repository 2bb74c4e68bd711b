"""What a configuration says of partitions: which are wanted of which source, and what they must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

from penstock import setting as kind
from penstock.config import Config
from penstock.connectors.customer import customer_digits
from penstock.errors import UsageError
from penstock.lifecycles.partitions.validate import TYPES, WHOLE_ROW, Schema, check_fields
from penstock.raw.gate import Range
from penstock.raw.paths import PartitionKey
from penstock.raw.settings import RAW_URL
from penstock.setting import REQUIRED, ConfigError, Setting


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
        "partitions.*.days",
        kind.whole(1, 3_650),
        3,
        "How many days, up to yesterday in UTC, the job enumerate-partitions wants.",
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
    """What is wanted of one source."""

    name: str
    customers: tuple[str, ...]
    queries: Mapping[str, Schema]
    days: int = 3
    keep_last_good: bool = False
    backfill_per_hour: int = 60
    digits: bool = True

    def customer(self, text: str) -> str:
        """The canonical id of one of its customers. Raises UsageError for one that it does not have."""
        found = customer_digits(text) if self.digits else text
        if found not in self.customers:
            msg = f"{self.name} has no customer {text}; configured are {_some(self.customers)}"
            raise UsageError(msg)
        return found

    def query(self, name: str) -> str:
        """The same name, if it is one of its queries. Raises UsageError."""
        if name not in self.queries:
            msg = f"{self.name} has no query {name!r}; configured are {_some(tuple(self.queries))}"
            raise UsageError(msg)
        return name

    def wanted(self, now: datetime) -> Range:
        """What the daily work wants: the last days up to yesterday."""
        yesterday = now.date() - timedelta(days=1)
        return self.range(yesterday - timedelta(days=self.days - 1), yesterday)

    def range(self, start: date, end: date) -> Range:
        """All its customers and queries between two days."""
        return Range(self.name, self.customers, tuple(self.queries), start, end)


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


def settings_of(config: Config) -> Settings:
    """The settings in force. Raises ConfigError with every customer id that is wrong."""
    queries: dict[str, dict[str, dict[str, Any]]] = {}
    for key, value in config.values.items():
        if key[0] == "partitions" and key[2:3] == ("queries",):
            queries.setdefault(key[1], {}).setdefault(key[3], {})[key[4]] = value
    errors: list[str] = []
    sources = {}
    for name, spec in config.section("partitions").items():
        customers = [_customer(name, text, spec, errors) for text in spec["customers"]]
        schemas = {query: _schema(own) for query, own in queries.get(name, {}).items()}
        sources[name] = Source(
            name,
            tuple(dict.fromkeys(customers)),
            schemas,
            spec["days"],
            spec["keep_last_good"],
            spec["backfill_per_hour"],
            spec["customer_ids"] == "digits",
        )
    if errors:
        raise ConfigError("\n".join(f"{config.path or 'the configuration'}: {error}" for error in errors))
    return Settings(sources, config["raw.url"])


def _customer(source: str, text: str, spec: Mapping[str, Any], errors: list[str]) -> str:
    try:
        return customer_digits(text) if spec["customer_ids"] == "digits" else text
    except UsageError as error:
        errors.append(f"partitions.{source}.customers: {error}")
        return text


def _schema(spec: Mapping[str, Any]) -> Schema:
    return Schema(spec["schema_version"], dict(spec["fields"]), tuple(spec["unique"]), spec["date_field"])


def _some(names: tuple[str, ...], most: int = 5) -> str:
    shown = ", ".join(names[:most]) or "none"
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown
