"""Validators: they inspect a landed run and say whether it may be consumed, with errors that a person can act on.

A run is read once, in bounded memory. What it must be is declared: the schema version that configuration pins, the
fields and their types, which rows count as duplicates, and business rules registered in Python.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.lifecycles.refreshes import Digest
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.near import near
from penstock.raw.paths import PartitionKey
from penstock.raw.sink import RawMetadata, RawPartition, decode_row
from penstock.raw.store import RawCorrupt

if TYPE_CHECKING:
    from penstock.lifecycles.partitions.settings import SourceQuery

MOST_ERRORS = 5
WHOLE_ROW = "*"
_INT64 = range(-(2**63), 2**63)
_WHOLE = re.compile(r"-?\d{1,19}\Z")
_MISSING: Any = object()
_DECODER = msgspec.json.Decoder(dict[str, Any])
_ENCODER = msgspec.json.Encoder(order="sorted")
_UNUSUAL = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

RowRule = Callable[[PartitionKey, Mapping[str, Any]], str | None]
PartitionRule = Callable[[PartitionKey, RawMetadata], str | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a validator says of a run: no errors make it good."""

    run_id: str
    schema_version: str
    record_count: int
    errors: Sequence[str] = ()
    #: When the source was asked for the run.
    fetched_at: datetime | None = None
    #: The same for the same rows in any order; None for a run that is not good.
    digest: str | None = None

    @property
    def good(self) -> bool:
        return not self.errors

    @property
    def error(self) -> str | None:
        return "; ".join(self.errors) or None


@dataclass(slots=True)
class Rules:
    """Business rules, by the query that they are for; `*` is every query. A rule returns what is wrong, or None."""

    rows: dict[str, list[RowRule]] = field(default_factory=dict)
    partitions: dict[str, list[PartitionRule]] = field(default_factory=dict)

    def row(self, query_name: str = WHOLE_ROW) -> Callable[[RowRule], RowRule]:
        """Register a rule for every row: `@rules.row("campaign_daily")`."""

        def register(rule: RowRule) -> RowRule:
            self.rows.setdefault(query_name, []).append(rule)
            return rule

        return register

    def partition(self, query_name: str = WHOLE_ROW) -> Callable[[PartitionRule], PartitionRule]:
        """Register a rule for the run as a whole, as its metadata tells of it."""

        def register(rule: PartitionRule) -> PartitionRule:
            self.partitions.setdefault(query_name, []).append(rule)
            return rule

        return register

    def rows_of(self, query_name: str) -> list[RowRule]:
        return [*self.rows.get(WHOLE_ROW, ()), *self.rows.get(query_name, ())]

    def partitions_of(self, query_name: str) -> list[PartitionRule]:
        return [*self.partitions.get(WHOLE_ROW, ()), *self.partitions.get(query_name, ())]


def inspect(
    opened: RawPartition,
    query: SourceQuery,
    rules: Rules | None = None,
    customers: Collection[str] | None = None,
    day_ends: datetime | None = None,
) -> Verdict:
    """Read a run to its end and judge it.

    `customers` are those that the configuration knows; at `day_ends` the partition's day is over where its customer is.
    """
    landed, rules = opened.metadata, rules or Rules()
    errors: list[str] = []
    if customers is not None and landed.key.customer_id not in customers:
        errors.append(f"customer {landed.key.customer_id} is not in the configuration of {landed.key.source}")
    if landed.schema_version != query.schema_version:
        errors.append(
            f"schema version {landed.schema_version!r} was landed, and the configuration pins"
            f" {query.schema_version!r}; extract it again, or pin the new version deliberately"
        )
    if day_ends is not None and landed.created_at < day_ends:
        begun, over = instant_text(landed.created_at), instant_text(day_ends)
        errors.append(f"the run was begun at {begun}, before its day was over at {over}; extract it again")
    errors += [problem for rule in rules.partitions_of(landed.key.query_name) if (problem := _asked(rule, landed))]
    digest = Digest()
    if not errors:
        for problem in _row_problems(opened, query, rules, digest):
            errors.append(problem)
            if len(errors) >= MOST_ERRORS:
                errors.append("and perhaps more")
                break
    same = None if errors else digest.text
    return Verdict(landed.run_id, landed.schema_version, landed.record_count, errors, landed.created_at, same)


def _row_problems(opened: RawPartition, query: SourceQuery, rules: Rules, digest: Digest) -> Iterator[str]:
    key = opened.metadata.key
    own = rules.rows_of(key.query_name)
    seen: set[bytes] = set()
    told: set[str] = set()
    read = 0
    try:
        for block in opened.blocks():
            lines = block[:-1].split(b"\n")
            rows, canonical, corrupt = _read(block, lines, read)
            digest.add(canonical)
            sound = _are_sound(rows, key, query)
            looked_at = zip(rows, lines, strict=False) if own or query.unique or not sound else ()
            for number, (row, line) in enumerate(looked_at, read + 1):
                fields = () if sound else _field_problems(row, key, query)
                for subject, problem in (*fields, *_repetitions(row, line, query, seen), *_broken(own, key, row)):
                    if subject not in told:  # the same mistake in every row is one mistake
                        told.add(subject)
                        yield f"row {number:,}: {problem}"
            if corrupt is not None:
                raise corrupt
            read += len(rows)
    except RawCorrupt as error:
        yield str(error)


def _read(
    block: bytes, lines: Sequence[bytes], before: int
) -> tuple[Sequence[dict[str, Any]], bytes, RawCorrupt | None]:
    """The rows of a block, the same in a form that equal rows share, and what is wrong with the row after them."""
    try:
        rows = _DECODER.decode_lines(block)
        if len(rows) == len(lines):
            return rows, _ENCODER.encode_lines(rows), None
    except _UNUSUAL:
        pass
    each: list[tuple[dict[str, Any], bytes]] = []
    corrupt = None
    for number, line in enumerate(lines, before + 1):
        try:
            each.append(_read_one(line, number))
        except RawCorrupt as error:
            corrupt = error
            break
    return [row for row, _ in each], b"".join([canonical + b"\n" for _, canonical in each]), corrupt


def _read_one(line: bytes, number: int) -> tuple[dict[str, Any], bytes]:
    """The same of one row, which may hold what Python's JSON knows and others do not, such as half a character."""
    try:
        row = _DECODER.decode(line)
        return row, _ENCODER.encode(row)
    except _UNUSUAL:
        row = decode_row(line, number, "payload.jsonl")
        return row, json.dumps(row, sort_keys=True).encode()


def _are_sound(rows: Sequence[Mapping[str, Any]], key: PartitionKey, query: SourceQuery) -> bool:
    """Whether no field of any row has a problem; looked at column by column, as there mostly is none."""
    for name, wanted in query.fields.items():
        values = [value_at(row, name) for row in rows]
        kinds = {*map(type, values)}
        if wanted.endswith("?"):
            values = [value for value in values if value is not _MISSING and value is not None]
        elif type(None) in kinds or any(value is _MISSING for value in values):
            return False
        if not all(map(TYPES[wanted.rstrip("?")], values)):
            return False
    day = key.logical_date.isoformat()
    return query.date_field is None or all(value_at(row, query.date_field) == day for row in rows)


def _field_problems(row: Mapping[str, Any], key: PartitionKey, query: SourceQuery) -> Iterator[tuple[str, str]]:
    for name, wanted in query.fields.items():
        value = value_at(row, name)
        optional = wanted.endswith("?")
        if value is _MISSING or value is None:
            if not optional:
                yield name, _missing(row, name, value)
        elif not TYPES[wanted.rstrip("?")](value):
            yield name, f"field {name} is {_shown(value)}, not {wanted.rstrip('?')}"
    if query.date_field is not None and value_at(row, query.date_field) != key.logical_date.isoformat():
        found = value_at(row, query.date_field)
        yield "its date", f"{query.date_field} is {_shown(found)}; the partition is of {key.logical_date}"


def _repetitions(
    row: Mapping[str, Any], line: bytes, query: SourceQuery, seen: set[bytes]
) -> Iterator[tuple[str, str]]:
    if not query.unique:
        return
    whole = query.unique == (WHOLE_ROW,)
    text = line if whole else repr([value_at(row, name) for name in query.unique]).encode()
    # Sixteen bytes a row are kept, whatever the rows are.
    digest = hashlib.blake2b(text, digest_size=16).digest()
    if digest in seen:
        yield "duplicates", f"repeats {'an earlier row' if whole else ', '.join(query.unique)}"
    seen.add(digest)


def _broken(rules: Sequence[RowRule], key: PartitionKey, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for rule in rules:
        if problem := _asked(rule, key, row):
            yield rule.__name__, problem


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field, whose dots lead into nested objects."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def names_of(row: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The names of all fields of a row."""
    for name, value in row.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from names_of(value, f"{above}{name}.")


def _missing(row: Mapping[str, Any], name: str, value: Any) -> str:
    if value is None:
        return f"field {name} is null"
    close = near(name, names_of(row))
    return f"field {name} is missing" + (f"; did it become {close[0]}?" if close else "")


def _shown(value: Any) -> str:
    return "missing" if value is _MISSING else f"{type(value).__name__} {value!r:.60}"


def _asked(rule: Callable[..., str | None], *facts: Any) -> str | None:
    name = getattr(rule, "__name__", "rule")
    given = (facts[0].key, facts[0]) if isinstance(facts[0], RawMetadata) else facts
    try:
        problem = rule(*given)
    except Exception as error:  # noqa: BLE001 - a rule that cannot judge a row does not let it pass
        return f"rule {name} failed: {type(error).__name__} {error}"
    return f"rule {name}: {problem}" if problem else None


def _is_whole(value: Any) -> bool:
    """A whole number of 64 bits, also as the text that JSON interfaces write one as."""
    if isinstance(value, str):
        return bool(_WHOLE.match(value)) and int(value) in _INT64
    return isinstance(value, int) and not isinstance(value, bool) and value in _INT64


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "whole": _is_whole,
    "number": _is_number,
    "bool": lambda value: isinstance(value, bool),
    "date": _is_date,
    "list": lambda value: isinstance(value, list),
    "table": lambda value: isinstance(value, dict),
    "any": lambda value: True,  # noqa: ARG005 - one shape
}


def check_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """The same, if every type is known. Raises UsageError."""
    for name, kind in fields.items():
        if not isinstance(kind, str) or kind.removesuffix("?") not in TYPES:
            msg = f"field {name} is {kind!r}; a type is one of {', '.join(TYPES)}, with a ? if it may be missing"
            raise UsageError(msg)
    return dict(fields)
