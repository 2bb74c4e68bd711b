"""Requests of an API as the configuration describes it: the path and the parameters that a query leads to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from typing import Any
from urllib.parse import quote, urlencode

from penstock.connectors.rest_json.dates import since_writer
from penstock.connectors.rest_json.settings import HOLE, RestSettings
from penstock.connectors.searches import Parameters
from penstock.model.cadence import parse_zone
from penstock.model.errors import Rejected

_UNSAFE = {"", ".", ".."}
Pairs = list[tuple[str, str]]


def check(settings: RestSettings, parameters: Parameters) -> list[str]:
    """What is wrong with the parameters of a query, each in a sentence; nothing is asked for that."""
    return list(Asking(settings, "").faults(parameters))


class Asking:
    """Writes the requests of one API. `base` is the path of its address."""

    def __init__(self, settings: RestSettings, base: str) -> None:
        self._settings = settings
        self._path = f"{base.rstrip('/')}{settings.path}"
        self._holes = frozenset(HOLE.findall(settings.path))
        self._own = set(settings.paging.parameters())
        self._since: Callable[[datetime], str] | None = None
        if settings.since is not None:
            self._own.add(settings.since.parameter)
            self._since = since_writer(settings.since.format, parse_zone(settings.time_zone))

    def since(self, moment: datetime | None) -> str | None:
        """What the API is told of it, if it can be told."""
        if moment is None or self._since is None or self._settings.since is None:
            return None
        return self._settings.since.value.replace("{}", self._since(moment))

    def target(self, parameters: Parameters, since: str | None, paging: Mapping[str, str]) -> str:
        """Path and parameters of one request. Raises Rejected for a query that the API cannot be asked."""
        for fault in self.faults(parameters):
            raise Rejected(fault)
        pairs = [*self._pairs(parameters), *paging.items()]
        if since is not None and self._settings.since is not None:
            pairs.append((self._settings.since.parameter, since))
        path = HOLE.sub(lambda hole: _filled(hole[1], parameters), self._path)
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def faults(self, parameters: Parameters) -> Iterator[str]:
        """What is wrong with the parameters of a query."""
        for name in sorted(self._holes):
            if name not in parameters:
                yield f"the query has no parameter {name!r}, which the path needs"
            elif not _is_text(parameters[name]) or _text(parameters[name]) in _UNSAFE:
                yield f"the query's parameter {name!r} is {parameters[name]!r:.100}, which cannot be part of a path"
        for name, value in parameters.items():
            sent = self._settings.send_as.get(name, name)
            if name in self._holes:
                continue
            if sent in self._own:
                yield f"the query's parameter {name!r} is sent as {sent!r}, which the paging or 'since' sets"
            if not all(map(_is_text, value if isinstance(value, list | tuple) else [value])):
                yield f"the query's parameter {name!r} cannot be sent; it must be text, a number, or a list of these"

    def _pairs(self, parameters: Parameters) -> Iterator[tuple[str, str]]:
        named = self._settings.send_as
        sent = {named.get(name, name): value for name, value in parameters.items() if name not in self._holes}
        for name, value in self._settings.parameters.items():
            if name not in sent:
                yield from self._written(name, value)
        for name, value in sent.items():
            yield from self._written(name, value)

    def _written(self, name: str, value: Any) -> Pairs:
        if not isinstance(value, list | tuple):
            return [(name, _text(value))]
        texts = [_text(item) for item in value]
        if self._settings.lists == "comma":
            return [(name, ",".join(texts))] if texts else []
        return [(name, text) for text in texts]


def _filled(name: str, parameters: Parameters) -> str:
    return quote(_text(parameters[name]), safe="")


def _is_text(value: Any) -> bool:
    return isinstance(value, str | int | float | date)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)
