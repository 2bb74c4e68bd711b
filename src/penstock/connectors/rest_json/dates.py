"""Dates as APIs write them, and instants in UTC with milliseconds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

from penstock.connectors.rest_json.settings import DateFormat
from penstock.model.clock import EPOCH

_LONGEST = 40
_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_PER_SECOND = {"unix": 1, "unix_ms": 1_000}
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,9})?")
_FIRST, _LAST = 1900, 9000  # years: beyond them arithmetic with days overflows, and no record has such a date


def instant_reader(form: DateFormat, zone: tzinfo) -> Callable[[Any], datetime]:
    """Reads instants of one format. What it makes raises ValueError or OverflowError for what is none.

    `iso` takes dates without a time too. What says no time zone is in `zone`; a date is the midnight with which its
    day begins there.
    """
    if form == "iso":
        return lambda value: _iso(value, zone)
    if form == "date":
        return lambda value: _utc(_midnight(read_date(value), zone))
    unit = timedelta(seconds=1) / _PER_SECOND[form]
    return lambda value: _utc(EPOCH + _number(value) * unit)


def place_reader(form: DateFormat, zone: tzinfo) -> Callable[[Any], datetime]:
    """The same for the date that says where in the list a record is: one beyond reason is none."""
    read = instant_reader(form, zone)

    def within(value: Any) -> datetime:
        moment = read(value)
        if not _FIRST <= moment.year <= _LAST:
            raise ValueError("not a date of our days")
        return moment

    return within


def read_date(value: Any) -> date:
    """`2026-11-15`. Raises ValueError."""
    if type(value) is not str or len(value) > _LONGEST:
        raise ValueError("not a date")
    return date.fromisoformat(value)


def since_writer(form: DateFormat, zone: tzinfo) -> Callable[[datetime], str]:
    """Writes the instant from which on an API is to give records, a unit too early.

    So nothing is left out, whether the API takes that date itself in or not, and wherever it lets its days begin.
    """
    if form == "iso":
        return lambda moment: (moment.astimezone(UTC) - _SECOND).strftime("%Y-%m-%dT%H:%M:%SZ")
    if form == "date":
        return lambda moment: (moment.astimezone(zone).date() - _DAY).isoformat()
    return lambda moment: str(math.floor((moment - EPOCH).total_seconds() - 1) * _PER_SECOND[form])


def _iso(value: Any, zone: tzinfo) -> datetime:
    if type(value) is not str or len(value) > _LONGEST:
        raise ValueError("not a text")
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        moment = _midnight(moment.date(), zone) if len(value) <= 10 else moment.replace(tzinfo=zone)  # noqa: PLR2004
    return _utc(moment)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC)
    odd = moment.microsecond % 1_000
    return moment.replace(microsecond=moment.microsecond - odd) if odd else moment


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=zone)


def _number(value: Any) -> float:
    if type(value) is str and _NUMBER.fullmatch(value):
        return float(value)
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError("not a number")
