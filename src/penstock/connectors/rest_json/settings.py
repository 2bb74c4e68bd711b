"""How `penstock.toml` describes a JSON API: `[queries.rest_json.*]`.

What contradicts itself is refused when it is read: one line for each fault, all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal

from penstock.connectors.rest_json.words import SQL_WORDS
from penstock.connectors.searches import OFFER_COLUMNS
from penstock.settings.typed import Secret, Settings, TimeZone, Url, says

DateFormat = Literal["iso", "date", "unix", "unix_ms"]
FieldType = Literal["text", "integer", "number", "boolean", "instant", "date", "json"]
RESERVED = frozenset(
    {"query_key", "record_id", "record_at", "seen_in", "first_seen_at", "last_seen_at"}
    | {"gone_at", "erased_at", "content_hash", "payload"}
)
"""The columns that every table of records has anyway."""
HOLE = re.compile(r"\{([^{}]*)\}")
"""Where a parameter of the query stands in the path."""

_LONGEST_PATH, _MOST_FIELDS, _LONGEST_NAME = 200, 200, 50
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PLAIN = re.compile(r"[\t -~]*")
_OWN_HEADERS = {"authorization", "proxy-authorization", "cookie", "host", "content-length", "transfer-encoding"}
_OWN_HEADERS |= {"connection", "accept-encoding", "content-type"}


def _one_of(section: Settings) -> None:
    given = [name for name in section.__struct_fields__ if getattr(section, name) is not None]
    if len(given) > 1:
        raise ValueError(f"has {' and '.join(map(repr, given))}; give one of them")


def _told(faults: Iterable[str]) -> None:
    if lines := list(faults):
        raise ValueError("\n".join(lines))


def _path_faults(*paths: tuple[str, str | None]) -> Iterator[str]:
    for name, path in paths:
        if path is None:
            continue
        if len(path) > _LONGEST_PATH or not all(part.strip() == part != "" for part in path.split(".")):
            yield f"{name}: {path!r:.80} is not a path; write names and places in lists as in a.b.0.c"


def _name_faults(place: str, name: str) -> Iterator[str]:
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        yield f"{place}: {name!r:.80} must be small letters, digits and _, begin with a letter, and be at most 50 long"
    elif name in SQL_WORDS:
        yield f"{place}: {name!r} means something to databases; call it otherwise, {name}_1 for example"


def _is_sendable(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_sendable(item) and not isinstance(item, list | tuple) for item in value)
    return isinstance(value, str | int | float | bool | date | datetime)


def _counts(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    listed = list(names)
    return ((name, listed.count(name)) for name in sorted(set(listed)) if listed.count(name) > 1)


class HeaderAuth(Settings):
    """`[….auth.header]`: a key in a header of its own."""

    name: Annotated[str, says("The header.", examples=["X-Api-Key"])]
    secret: Annotated[Secret, says("The key.", examples=[{"env": "API_KEY"}])]

    def __post_init__(self) -> None:
        if not _HEADER.fullmatch(self.name):
            raise ValueError(f"name: {self.name!r} is not the name of a header")


class BearerAuth(Settings):
    """`[….auth.bearer]`: a token that does not expire, as `Authorization: Bearer …`."""

    secret: Annotated[Secret, says("The token.", examples=[{"env": "API_TOKEN"}])]


class BasicAuth(Settings):
    """`[….auth.basic]`: a user and a password."""

    user: Annotated[str, says("The user.", examples=["me"])]
    secret: Annotated[Secret, says("The password.", examples=[{"env": "API_PASSWORD"}])]

    def __post_init__(self) -> None:
        if ":" in self.user:
            raise ValueError("user: has a colon, which ends a user's name in Basic authorisation")


class OAuth(Settings):
    """`[….auth.oauth]`: the client-credentials grant of OAuth 2."""

    token_url: Annotated[Url, says("Where tokens are issued.", examples=["https://login.example.com/oauth/token"])]
    client_id: Annotated[str, says("The client's id.", examples=["your-client-id"])]
    secret: Annotated[Secret, says("The client's secret.", examples=[{"env": "API_CLIENT_SECRET"}])]
    scope: Annotated[str | None, says("The scope that is asked for.")] = None


class AuthSettings(Settings):
    """`[….auth]`: how the API knows who asks; one way, or none at all."""

    header: Annotated[HeaderAuth | None, says("A key in a header of its own.")] = None
    bearer: Annotated[BearerAuth | None, says("A token that does not expire, as Authorization: Bearer.")] = None
    basic: Annotated[BasicAuth | None, says("A user and a password.")] = None
    oauth: Annotated[OAuth | None, says("Client credentials of OAuth 2, exchanged for tokens.")] = None

    def __post_init__(self) -> None:
        _one_of(self)


_SIZE = says("How many records a page has; at most as many as the API gives.", ge=1, le=10_000)
_MOST = says("How many records of a list the API gives at most; what follows is out of reach.", ge=1)


class PagePaging(Settings):
    """`[….paging.page]`: pages by their numbers."""

    parameter: Annotated[str, says("The parameter with the page's number.")] = "page"
    first: Annotated[int, says("The number of the first page.", choices=[0, 1])] = 1
    size: Annotated[int, _SIZE]
    size_parameter: Annotated[
        str | None, says("The parameter with the page's size; leave it out if the API has none.", examples=["per_page"])
    ] = None
    last: Annotated[int | None, says("The largest page number that the API serves, if it has one.", ge=0)] = None
    most_records: Annotated[int | None, _MOST] = None

    def __post_init__(self) -> None:
        _told(self._faults())

    def _faults(self) -> Iterator[str]:
        if self.parameter == self.size_parameter:
            yield f"size_parameter: {self.parameter!r} is the parameter of the page's number already"
        if self.last is not None and self.last < self.first:
            yield f"last: {self.last} comes before the first page, {self.first}"


class OffsetPaging(Settings):
    """`[….paging.offset]`: pages by the place of their first record."""

    parameter: Annotated[str, says("The parameter with the place.")] = "offset"
    first: Annotated[int, says("The place of the first record, as the API counts.", choices=[0, 1])] = 0
    size: Annotated[int, _SIZE]
    size_parameter: Annotated[str | None, says("The parameter with the page's size.", examples=["limit"])] = None
    most_records: Annotated[int | None, _MOST] = None

    def __post_init__(self) -> None:
        if self.parameter == self.size_parameter:
            raise ValueError(f"size_parameter: {self.parameter!r} is the parameter of the place already")


class CursorPaging(Settings):
    """`[….paging.cursor]`: each page says how the next one is asked for."""

    parameter: Annotated[str, says("The parameter with the cursor.")] = "cursor"
    next: Annotated[str, says("Where the next cursor is in the answer.", examples=["meta.next_cursor"])]
    more: Annotated[str | None, says("Where the answer says whether more follows, if it does.")] = None

    def __post_init__(self) -> None:
        _told(_path_faults(("next", self.next), ("more", self.more)))


class LinkPaging(Settings):
    """`[….paging.link]`: each page has the address of the next one, in its Link header or in its body."""

    next: Annotated[
        str | None, says('Where the next address is in the answer; left out: in the header Link, as rel="next".')
    ] = None

    def __post_init__(self) -> None:
        _told(_path_faults(("next", self.next)))


class PagingSettings(Settings):
    """`[….paging]`: how a list is read; one way, or none where one answer has all of it."""

    page: Annotated[PagePaging | None, says("Pages by their numbers.")] = None
    offset: Annotated[OffsetPaging | None, says("Pages by the place of their first record.")] = None
    cursor: Annotated[CursorPaging | None, says("Each page has a cursor for the next.")] = None
    link: Annotated[LinkPaging | None, says("Each page has the address of the next.")] = None

    def __post_init__(self) -> None:
        _one_of(self)

    def parameters(self) -> list[str]:
        """The parameters that are its own."""
        found = [self.cursor.parameter] if self.cursor else []
        for numbered in (self.page, self.offset):
            if numbered is not None:
                found += [numbered.parameter, *filter(None, [numbered.size_parameter])]
        return found


class SinceSettings(Settings):
    """`[….since]`: the parameter by which the API leaves out older records, by the same date as `date`."""

    parameter: Annotated[str, says("The parameter.", examples=["since"])]
    format: Annotated[DateFormat, says("How the date is written.")] = "iso"
    value: Annotated[str, says("What is sent; {} stands for the date.", examples=["created_at_i>={}"])] = "{}"

    def __post_init__(self) -> None:
        if self.value.count("{}") != 1:
            raise ValueError(f"value: {self.value!r} must have {{}} in it once, where the date goes")


class FieldSettings(Settings):
    """`[….fields.*]`: one column of a table of its own."""

    path: Annotated[str, says("Where the value is in a record.", examples=["user.login"])]
    type: Annotated[FieldType, says("The column's type.")] = "text"
    format: Annotated[DateFormat, says("How an instant is written.")] = "iso"

    def __post_init__(self) -> None:
        _told(_path_faults(("path", self.path)))


class RestSettings(Settings):
    """One API: where it is, how it is asked, and what its records are."""

    url: Annotated[Url, says("Where the API is served.", examples=["https://api.example.com"])]
    path: Annotated[
        str, says("The path of the list. {name} stands for that parameter of the query.", examples=["/v1/jobs"])
    ] = "/"
    parameters: Annotated[
        dict[str, Any],
        says(
            "Parameters that are sent with every request, unless the query gives others.", examples=[{"sort": "date"}]
        ),
    ] = {}
    headers: Annotated[
        dict[str, str], says("Headers that are sent with every request.", examples=[{"Accept": "application/json"}])
    ] = {}
    send_as: Annotated[
        dict[str, str],
        says(
            "Parameters of the query that the API calls by another name; others keep theirs.", examples=[{"text": "q"}]
        ),
    ] = {}
    lists: Annotated[
        Literal["repeat", "comma"], says("How a list is sent: as repeated parameters, or as one joined by commas.")
    ] = "repeat"
    ordered: Annotated[
        list[str],
        says("Parameters whose lists have an order that matters; in others another order is the same search."),
    ] = []
    auth: Annotated[AuthSettings, says("How the API knows who asks; left out: it does not.")] = AuthSettings()
    paging: Annotated[PagingSettings, says("How a list is read; left out: one answer has it all.")] = PagingSettings()
    since: Annotated[SinceSettings | None, says("The parameter by which the API leaves out older records.")] = None
    order: Annotated[
        Literal["none", "newest_first"], says("newest_first: the list is in the order of 'date', newest first.")
    ] = "none"
    records: Annotated[
        str | None, says("Where the records are in the answer; left out: it is the list.", examples=["data.items"])
    ] = None
    total: Annotated[
        str | None, says("Where the answer says how many records the list has.", examples=["meta.total"])
    ] = None
    id: Annotated[str, says("Where the id is in a record.")] = "id"
    date: Annotated[
        str, says("Where the date is in a record: of its last change, or of its creation.", examples=["updated_at"])
    ]
    date_format: Annotated[DateFormat, says("How that date is written.")] = "iso"
    offer: Annotated[
        dict[str, str],
        says("Records are job offers: where each column is in a record.", examples=[{"title": "job.title"}]),
    ] = {}
    table: Annotated[
        str | None, says("Records have a table of their own, of this name.", examples=["github_issues"])
    ] = None
    fields: Annotated[dict[str, FieldSettings], says("The columns of that table, by name.", examples=["title"])] = {}
    time_zone: Annotated[TimeZone, says("The time zone in which days begin, and of dates that name none.")] = TimeZone(
        "UTC"
    )
    requests_per_second: Annotated[
        float, says("How fast the API may be called; 0 means no limit. [gates] takes precedence.", ge=0, le=1_000)
    ] = 1.0

    def __post_init__(self) -> None:
        _told([*self._asking_faults(), *self._shape_faults()])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its records."""
        return tuple(self.fields) if self.table is not None else OFFER_COLUMNS

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What is sent where a query says nothing, by the names that queries use."""
        named = {sent: name for name, sent in self.send_as.items()}
        return {named.get(name, name): value for name, value in self.parameters.items()}

    def _asking_faults(self) -> Iterator[str]:
        if "?" in self.url or "#" in self.url:
            yield "url: has parameters or a fragment; parameters go into 'parameters'"
        if not self.path.startswith("/") or not re.fullmatch(r"[!-~]+", self.path) or set(self.path) & set('?#\\"<>'):
            yield f"path: {self.path!r} must begin with / and be a plain path; parameters go into 'parameters'"
        elif "{" in (bare := HOLE.sub("", self.path)) or "}" in bare or "" in HOLE.findall(self.path):
            yield f"path: {self.path!r} must name a parameter in each pair of braces"
        for name, value in self.parameters.items():
            if not _is_sendable(value):
                yield f"parameters.{name}: must be text, a number, true or false, a date, or a list of these"
        yield from self._header_faults()
        own = set(self.paging.parameters())
        if self.since is not None and self.since.parameter in own:
            yield f"since.parameter: {self.since.parameter!r} is a parameter of the paging already"
        own |= {self.since.parameter} if self.since is not None else set()
        for name in sorted(own & {*self.parameters, *self.send_as.values()}):
            yield f"the parameter {name!r} is set by 'paging' or 'since'; take it out of 'parameters' and 'send_as'"
        for name, count in _counts(self.send_as.values()):
            yield f"send_as: {count} parameters are sent as {name!r}"

    def _header_faults(self) -> Iterator[str]:
        for name, value in self.headers.items():
            if name.lower() in _OWN_HEADERS:
                yield f"headers.{name}: cannot be set here; 'auth' says who asks, and the client sets the others"
            elif not _HEADER.fullmatch(name) or not _PLAIN.fullmatch(value):
                yield f"headers.{name}: has characters that no header can have"
        if self.auth.header is not None and self.auth.header.name.lower() in {name.lower() for name in self.headers}:
            yield f"headers.{self.auth.header.name}: is the header of 'auth' already"

    def _shape_faults(self) -> Iterator[str]:
        yield from _path_faults(
            *(("records", self.records), ("total", self.total), ("id", self.id), ("date", self.date)),
            *((f"offer.{name}", path) for name, path in self.offer.items()),
        )
        if self.offer and self.table is not None:
            yield "has both 'offer' and 'table'; records are job offers, or have a table of their own"
        elif not self.offer and self.table is None:
            yield "has neither 'offer' nor 'table'; say which fields go where"
        for name in self.offer:
            if name not in OFFER_COLUMNS:
                yield f"offer.{name}: is not a column of offers; they have {', '.join(OFFER_COLUMNS)}"
        if self.offer and "title" not in self.offer:
            yield "offer: has no 'title'"
        if self.fields and self.table is None:
            yield "has 'fields' and no 'table'; name the table"
        if self.table is not None:
            yield from self._table_faults(self.table)

    def _table_faults(self, table: str) -> Iterator[str]:
        yield from _name_faults("table", table)
        if table.startswith(("sqlite_", "pg_", "penstock_")):
            yield f"table: {table!r} begins like a database's own tables; choose another name"
        if not self.fields:
            yield f"table: {table!r} has no 'fields'; give at least one"
        if len(self.fields) > _MOST_FIELDS:
            yield f"fields: there are {len(self.fields)}; {_MOST_FIELDS} is the most"
        for name in self.fields:
            if name in RESERVED:
                yield f"fields.{name}: every table has this column already; choose another name"
            else:
                yield from _name_faults(f"fields.{name}", name)


REST_EXAMPLE = {
    "url": "https://api.example.com",
    "path": "/v1/jobs",
    "auth": {"bearer": {"secret": {"env": "JOBS_API_TOKEN"}}},
    "paging": {"page": {"parameter": "page", "size": 50, "size_parameter": "per_page"}},
    "order": "newest_first",
    "records": "data.items",
    "date": "updated_at",
    "offer": {"title": "title", "company": "company.name", "city": "location.city", "url": "url"},
}
"""What the sample of a configuration shows: it is valid as it is."""
