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
        pairs = [*self._pairs(parameters), *paging.items()]
        if since is not None and self._settings.since is not None:
            pairs.append((self._settings.since.parameter, since))
        path = HOLE.sub(lambda hole: _filled(hole[1], parameters), self._path)
        return f"{path}?{urlencode(pairs)}" if pairs else path

    def _pairs(self, parameters: Parameters) -> Iterator[tuple[str, str]]:
        named = self._settings.send_as
        sent = {named.get(name, name): (name, value) for name, value in parameters.items() if name not in self._holes}
        for name, value in self._settings.parameters.items():
            if name not in sent:
                yield from self._written(name, name, value)
        for name, (own, value) in sent.items():
            if name in self._own:
                raise Rejected(f"the query's parameter {own!r} is sent as {name!r}, which the paging or 'since' sets")
            yield from self._written(name, own, value)

    def _written(self, name: str, own: str, value: Any) -> Pairs:
        if not isinstance(value, list | tuple):
            return [(name, _text(own, value))]
        texts = [_text(own, item) for item in value]
        if self._settings.lists == "comma":
            return [(name, ",".join(texts))] if texts else []
        return [(name, text) for text in texts]


def _filled(name: str, parameters: Parameters) -> str:
    if name not in parameters:
        raise Rejected(f"the query has no parameter {name!r}, which the path needs")
    text = _text(name, parameters[name])
    if text in _UNSAFE:
        raise Rejected(f"the query's parameter {name!r} is {text!r}, which cannot be part of a path")
    return quote(text, safe="")


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str | int | float):
        return str(value)
    raise Rejected(f"the query's parameter {name!r} cannot be sent; it must be text, a number, or a list of these")
