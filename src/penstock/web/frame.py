"""What every page has: who asks, the menu, the moment that is looked at, and how values are shown."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial, wraps
from http import HTTPStatus
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from penstock.api.problems import Problem
from penstock.api.routes import words_of
from penstock.model.clock import instant_text, parse_instant
from penstock.model.errors import BadInstant, LedgerError, PenstockError
from penstock.model.inert import inert
from penstock.operations.declare import Reading, Role
from penstock.operations.fields import FieldInfo, fields_of
from penstock.operations.words import when, word
from penstock.web.live import EVERYTHING, Mark, first_of, mark_of
from penstock.web.timebar import kept_of

if TYPE_CHECKING:
    from penstock.api.access import Access, Person
    from penstock.api.desk import Desk
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.model.machine import Machine

_PLAIN = re.compile(r"[a-z]+(?:'[a-z]+)?[,;:.!?]?(?: |$)")
_WORD = re.compile(r"\S+")
_SEPARATED = re.compile(r"(?<=[/=,;&])(?=.)|(?<=:)(?!(?<=\d:)\d\d(?!\d))(?=.)|(?<=\d-\d\d-\d\d)(?=T\d)")
"""Not within 12:30, but before the time of a moment."""
_JOINED = re.compile(r"(?<=[_.-])(?=.)")
_UNBROKEN = 26
"""So many characters are never wider than a column."""
_MOMENT = r"(?<![\w/:.%-])(?<!run )\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z(?![\w/])"  # a run may be called by one
_TOLD = re.compile(rf"(?P<moment>{_MOMENT})|(?<!\S)--[a-z][a-z-]*")
_ALONE = re.compile(_MOMENT)
"""A value that is a moment and nothing else is a name."""
_FOLDED = 500
_SHOWN = 300
"""Of a text of more than `_FOLDED` characters so many are shown; the rest is one step away."""
STATIC = ("desk.css", "desk.js", "icon.svg")
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the menu. `meaning` is the mark beside it."""

    name: str
    link: str
    count: int | None = None
    meaning: str | None = None


class Frame:
    """Renders pages of one desk."""

    def __init__(self, desk: Desk, access: Access) -> None:
        self.desk = desk
        self.access = access
        self._environment = Environment(
            loader=PackageLoader("penstock.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            finalize=_inert,  # whoever wrote a template may forget it
        )
        self._environment.filters |= {
            "pill": pill,
            "count": lambda number: f"{number:,}",
            "label": label,
            "breakable": breakable,
            "folded": folded,
            "heading": heading,
        }

    @cached_property
    def static(self) -> Mapping[str, tuple[bytes, str, str]]:
        """By name: what it is, its type, and a digest that changes with it."""
        folder = resources.files("penstock.web") / "static"
        found = {}
        for name in STATIC:
            content = (folder / name).read_bytes()
            kind = _TYPES[name.rpartition(".")[2]]
            found[name] = (content, kind, hashlib.sha256(content).hexdigest()[:10])
        return found

    async def show(
        self, request: Request, template: str, here: str, view: Mapping[str, Any], status: int = HTTPStatus.OK
    ) -> Response:
        """A page. `here` is the line of the menu that it belongs to."""
        person = await self.access.person(request)
        at = self.at(request)
        counts = {} if at is not None else await self.seen(request, self._counts, person)
        own = {"person": person, "here": here, "menu": self._menu(at, counts), "at": at}
        return HTMLResponse(self._rendered(request, template, {**own, **view}), status)

    def bare(
        self, request: Request, template: str, view: Mapping[str, Any], status: int, headers: Mapping[str, str]
    ) -> Response:
        """A page of nobody in particular."""
        own: dict[str, Any] = {"person": None, "here": "", "menu": [], "at": self._looked_at(request)}
        return HTMLResponse(self._rendered(request, template, {**own, **view}), status, headers)

    def _rendered(self, request: Request, template: str, view: Mapping[str, Any]) -> str:
        root, person = self.desk.root_path, view["person"]
        path, kept = request.url.path.removeprefix(root) or "/", kept_of(request)
        asked = request.query_params.get("regions")
        wanted = None if asked is None else frozenset(asked.split(","))
        return self._environment.get_template(f"{template}.html").render(
            root=root,
            asset=lambda name: f"{root}/static/{name}?{self.static[name][2]}",
            frame="base.html" if wanted is None else "regions.html",
            wanted=wanted,
            region=partial(_region, wanted),
            csrf=self.access.csrf(person),
            mark="" if person is None else first_of(_marks(request)),
            now=self.desk.clock.now(),
            moment="" if view["at"] is None else instant_text(view["at"]),
            to=partial(self._to, view["at"]),
            path=path,
            now_link=f"{root}{path}" + (f"?{urlencode(kept)}" if kept else ""),
            **view,
        )

    async def seen(
        self, request: Request, work: Callable[..., Mapping[str, Any]], person: Person | None, *given: Hashable
    ) -> dict[str, Any]:
        """What a page shows: `work(person, *given)` on a thread, once for all of one role who ask the same at once.

        Who was told of a change gets no answer from before it.
        """
        role, told = None if person is None else person.role, request.query_params.get("told")
        question = (work, self.desk.program.configuration.version, role, told, *given)

        def marked() -> tuple[Mark, Mapping[str, Any]]:
            return self.mark(), work(person, *given)

        mark, found = await self.desk.shared.once(question, lambda: self.desk.read(marked))
        _marks(request).append(mark)
        return dict(found)

    def mark(self) -> Mark:
        """What the ledger holds now, for a page that follows it."""
        looked = self.desk.clock.elapsed()
        try:
            return Mark(looked, self.desk.ledger().read(mark_of))
        except LedgerError:
            return Mark(looked, "")

    def marked(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """A page that carries a mark from before it was made, if somebody is let in."""

        @wraps(endpoint)
        async def page(request: Request) -> Response:
            if "regions" not in request.query_params and await self.access.person(request) is not None:
                _marks(request).append(await self.desk.glance(self.mark))
            return await endpoint(request)

        return page

    async def allow(self, request: Request, role: Role = Role.VIEWER, *, form: str | None = None) -> Person:
        """Who asks, if they may; see `Access.allow`."""
        return await self.access.allow(request, role, form=form)

    def at(self, request: Request) -> datetime | None:
        """The moment of the past that is looked at; None: now. Raises Problem for one that cannot be read.

        Seconds since 1970 will do, as a slider has them.
        """
        given = request.query_params.get("at", "").strip()
        if not given:
            return None
        try:
            found = _seconds(given) if given.isdecimal() else None
            found = found or parse_instant(given if "T" in given else given.replace(" ", "T") + _UNTIL[len(given)])
        except (BadInstant, KeyError, ValueError, OverflowError, OSError):
            detail = f"{inert(given)[:50]!r} is no moment; write 2026-11-15 19:31 or 2026-11-15T19:31:00Z, in UTC"
            raise Problem(HTTPStatus.BAD_REQUEST, detail) from None
        return found if found < self.desk.clock.now() else None

    def _looked_at(self, request: Request) -> datetime | None:
        """The same, or None for one that cannot be read."""
        try:
            return self.at(request)
        except Problem:
            return None

    def _to(self, at: datetime | None, address: str) -> str:
        """An address below the root; the moment that is looked at goes along."""
        if at is None:
            return f"{self.desk.root_path}{address}"
        return f"{self.desk.root_path}{address}{'&' if '?' in address else '?'}{urlencode({'at': instant_text(at)})}"

    def link(self, *parts: str, at: datetime | None = None, **query: str | None) -> str:
        """The address of a page; the moment that is looked at goes along."""
        path = "".join(f"/{quote(part, safe='')}" for part in parts) or "/"
        given = {name: value for name, value in query.items() if value is not None}
        if at is not None:
            given["at"] = instant_text(at)
        return f"{self.desk.root_path}{path}" + (f"?{urlencode(given)}" if given else "")

    def reading_link(
        self, lifecycle: AnyLifecycle, reading: Reading[Any], value: str, *, at: datetime | None = None
    ) -> str:
        """A reading of a lifecycle, asked with one value: that of its argument."""
        name = next((one.name for one in fields_of(reading.parameters) if one.extra("argument")), None)
        return self.link("read", *words_of(lifecycle, reading), at=at, **({} if name is None else {name: value}))

    def column_link(self, lifecycle: AnyLifecycle, column: FieldInfo, value: Any, *, at: datetime | None) -> str | None:
        """Where a value of a column leads; None: nowhere."""
        wanted = column.extra("leads")
        reading = next((one for one in lifecycle.readings if one.name == wanted), None)
        if reading is None:
            return None
        return self.link(
            "read", *words_of(lifecycle, reading), at=at, **{column.extra("gives") or column.name: str(value)}
        )

    def unit_link(self, ref: str, at: datetime | None = None) -> str:
        """The page of a unit."""
        machine, _, unit_id = ref.partition(":")
        path = "/".join(quote(part, safe="") for part in unit_id.split("/"))
        base = self.link("units", machine)
        tail = f"?{urlencode({'at': instant_text(at)})}" if at is not None else ""
        return f"{base}/{path}{tail}"

    def found_link(self, row: Any, at: datetime | None = None) -> str:
        """Where something that was searched for is shown."""
        if row.kind == "gate":
            return self.link("read", "gates", gate=row.name, at=at)
        if row.kind in {"machine", "lifecycle"}:
            return self.link(f"{row.kind}s", row.name, at=at)
        return self.unit_link(row.name, at)

    def machine(self, name: str) -> Machine:
        """A machine of the program. Raises Problem where there is none."""
        for one in self.desk.program.app.machines:
            if one.name == name:
                return one
        raise Problem(
            HTTPStatus.NOT_FOUND, f"no machine is called {inert(name)[:50]!r}; the overview lists those that there are"
        )

    def _counts(self, person: Person) -> dict[str, int]:
        """How many alerts fire, and how many dead letters there are; nothing while the ledger cannot say."""
        from penstock.operations.alerts.commands import AlertList, list_alerts
        from penstock.operations.dead import DeadFilter, list_dead

        ask = self.desk.ask(self.desk.program.app.lifecycles[0], who=person.name)
        try:
            firing = (list_alerts(ask, AlertList(limit=1)).counts or {}).get("firing", 0)
            return {"Alerts": firing, "Dead letters": sum(one.count for one in list_dead(ask, DeadFilter()).rows)}
        except PenstockError:
            return {}

    def _menu(self, at: datetime | None, counts: Mapping[str, int]) -> list[tuple[str, list[Item]]]:
        app = self.desk.program.app
        shown = [one for one in app.own if one.machines or one.readings or one.operations]
        flows = [Item(one.name, self.link("lifecycles", one.name, at=at)) for one in shown]
        desk = {"What happens next": "forecast", "Alerts": "read/alerts", "Dead letters": "dead", "Units": "units"}
        plant = {
            "Gates": "gates", "Schedules": "schedules", "Workers": "workers",
            "Events": "events", "Doctor": "doctor", "Bulk actions": "bulk",
        }  # fmt: skip
        views = [Item(name, self._to(at, address)) for name, address in self.desk.settings.views.items()]
        return [
            (
                "Desk",
                [
                    Item("Overview", self.link(at=at)),
                    *(
                        Item(
                            name,
                            self.link(*path.split("/"), at=at),
                            counts.get(name),
                            "fault" if counts.get(name) else None,
                        )
                        for name, path in desk.items()
                    ),
                ],
            ),
            *([("Views", views)] if views else []),
            ("Flows", [*flows, Item("kernel", self.link("lifecycles", "kernel", at=at))]),
            ("Plant", [Item(name, self.link("read", *path.split("/"), at=at)) for name, path in plant.items()]),
        ]


def _marks(request: Request) -> list[Mark]:
    """The marks of what a page is made of."""
    found: list[Mark] = request.scope.setdefault("penstock.marks", [])
    return found


def _seconds(text: str) -> datetime | None:
    """Seconds since 1970; None: too few digits, so that it is something else."""
    return datetime.fromtimestamp(int(text), UTC) if len(text) > 8 else None  # noqa: PLR2004 - longer than a date


_UNTIL = {10: "T00:00:00Z", 16: ":00Z", 19: "Z"}
"""What a moment that is written short leaves out, by its length."""


def _inert(value: Any) -> Any:
    return inert(value, lines=True) if type(value) is str else value


def _region(wanted: frozenset[str] | None, name: str, follows: str = EVERYTHING, *, caller: Callable[[], str]) -> str:
    """A part of a page that changes with what it `follows`: names of machines, `gates`, or everything.

    Made only where the page is asked for whole (`wanted` is None), or for this.
    """
    if wanted is not None and name not in wanted:
        return ""
    whole = '<div class="region" data-region="{}" data-follows="{}">{}</div>'
    return Markup(whole).format(name, follows, Markup(caller()))  # noqa: S704 - the template has escaped it


def label(name: str) -> str:
    """A name of the declarations as people read it: `older_than` is `Older than`."""
    return begun(name.replace("_", " "))


def begun(text: str) -> str:
    """With a capital, as a sentence begins; a name at its beginning stays as it is."""
    return text[:1].upper() + text[1:] if _PLAIN.match(text) else text


def heading(says: str) -> str:
    """What something says of itself, as it stands above it."""
    return says.removesuffix(".")


def ended(text: str) -> str:
    """With a full stop, as a sentence ends."""
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."


def pill(state: str, meaning: str | None) -> Markup:
    """A state, with a shape and a colour for what it means."""
    tone = meaning or "rest"
    return Markup('<span class="pill {tone}"><span class="mark {tone}"></span>{state}</span>').format(
        tone=tone, state=inert(state)
    )


def moment(given: datetime | None, now: datetime, then: datetime | None = None) -> Markup:
    """A moment: exact in the attribute, relative in the text; where the past is looked at, exact in both."""
    if given is None:
        return Markup("&ndash;")
    exact, title = instant_text(given), f"{given:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact, title, _ago(given, now) if then is None else f"{given:%Y-%m-%d %H:%M}"
    )


def _ago(given: datetime, now: datetime) -> str:
    return "now" if abs((now - given).total_seconds()) < 1 else when(given, now, short=True)


def breakable(text: str, over: int = 20) -> Markup:
    """Text, inert, whose words of more than so many characters may go on in the next line: after separators, if any.

    A browser breaks them nowhere else: a date stays in one piece.
    """
    shown, found, last = inert(text), list[Markup](), 0
    for long in (one for one in _WORD.finditer(shown) if len(one[0]) > over):
        pieces = Markup("<wbr>").join(_pieces(long[0]))
        found += [escape(shown[last : long.start()]), Markup('<span class="whole">{}</span>').format(pieces)]
        last = long.end()
    return Markup("").join([*found, escape(shown[last:])])


def _pieces(long: str) -> Iterator[str]:
    for part in _SEPARATED.split(long):
        for piece in [part] if len(part) <= _UNBROKEN else _JOINED.split(part):
            yield from (piece[at : at + _UNBROKEN] for at in range(0, len(piece), _UNBROKEN))


def told(text: str) -> Markup:
    """A sentence, inert: moments in it are told to the minute, and options of commands are never broken."""
    shown, found, last = inert(text), list[Markup](), 0
    for one in () if _ALONE.fullmatch(shown) else _TOLD.finditer(shown):
        whole = Markup('<span class="nowrap">{}</span>').format(one[0]) if one["moment"] is None else _told(one[0])
        found += [breakable(shown[last : one.start()]), whole]
        last = one.end()
    return Markup("").join([*found, breakable(shown[last:])])


def _told(instant: str) -> Markup:
    try:
        given = parse_instant(instant)
    except BadInstant:
        return escape(instant)
    return moment(given, given, given)


def folded(text: str) -> Markup:
    """A sentence; of a very long one the beginning, and the rest where it is asked for."""
    if len(text) <= _FOLDED:
        return told(text)
    space = text.rfind(" ", _SHOWN // 2, _SHOWN)
    cut = _SHOWN if space < 0 else space
    return Markup('<details class="fold"><summary>{}<span class="link">… more</span></summary>{}</details>').format(
        told(text[:cut]), told(text[cut:])
    )


def plain(value: Any, now: datetime) -> str:
    """Any value as inert text."""
    return inert(word(value, now))
