"""Pages of the declarations: every reading can be asked, every operation can be shown and then done."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.api.answers import form_of
from penstock.api.problems import Problem, problem_of
from penstock.api.routes import Acting, Place, places
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.operations.carry import KERNEL
from penstock.operations.conversion import BadParameters, from_texts
from penstock.operations.declare import Lines, Operation, Page, Reading, Role
from penstock.operations.fields import fields_of
from penstock.raw.reader import NotReady
from penstock.web.answers import NOTHING_YET, PAGE, Answers, Table
from penstock.web.forms import command_of, form_fields, grouped, pairs_of
from penstock.web.frame import begun
from penstock.web.live import EVERYTHING, OF_THE_SCRIPT
from penstock.web.pictures import Painter
from penstock.web.timebar import bar_of, hours_of, kept_of

if TYPE_CHECKING:
    from penstock.api.access import Person
    from penstock.app.app import App
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.operations.carry import Done, Preview
    from penstock.web.frame import Frame
    from penstock.web.timebar import Kept, TimeBar

AT = "at"
"""What readings call the moment that they are asked for."""
NO_HISTORY = "this has no history"
NO_PAST = "nothing can be done in the past; go back to now"
_NOT_CARRIED = ("limit", "after", "at", "dismissed")
_MOST_LINES = 200
_MOST_FIELDS = 1_000
_DIGITS = 10
_SKIP = "skip"
"""How many rows of a long answer came before: a reading without pages of its own has them here."""
_OWN = ("csrf", "act", "digest", "reason", "at", *OF_THE_SCRIPT, _SKIP)


class Declared:
    """The pages `/read/…` and `/do/…`."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._desk = frame.desk

    @property
    def app(self) -> App:
        """The program's parts, as they are in force."""
        return self._desk.program.app

    def place(self, path: str, kind: type[Reading[Any] | Operation[Any]]) -> Place:
        """The declaration at an address. Raises Problem where there is none."""
        for place in places(self._desk.program.app):
            if place.path == f"/{path}" and isinstance(place.declared, kind):
                return place
        raise Problem(
            HTTPStatus.NOT_FOUND, f"there is nothing at {inert(path)[:80]!r}; the menu leads to what there is"
        )

    async def read(self, request: Request) -> Response:
        """A reading: its parameters as a form, and its answer as tables."""
        place = self.place(request.path_params["path"], Reading)
        person = await self._frame.allow(request, place.declared.role)
        given = grouped(request.query_params.multi_items())
        parameters = place.declared.parameters
        pairs = [pair for pair in pairs_of(parameters, given) if pair[0] not in _OWN or _has(parameters, pair[0])]
        fields = form_fields(parameters, given, {AT})
        at = self._frame.at(request)
        past = _has(parameters, AT)
        if at is not None and past:
            pairs = [*(pair for pair in pairs if pair[0] != AT), (AT, instant_text(at))]
        view: dict[str, Any] = {
            "name": _title(place),
            "says": place.declared.says,
            "follows": _follows(place),
            "fields": fields,
            "one": False,
            "asked": any(one.value for one in fields),
            "which": any(one.required for one in fields),
            "blocks": [],
            "pictures": [],
            "next": None,
            "begins": None,
            "problem": "",
            "no_past": "" if at is None or past else begun(getattr(place.declared, "no_past", "") or NO_HISTORY),
            "of": _about(parameters, given),
            "bar": None,
            "command": command_of(place, pairs),
            "address": _lasting(place, pairs),
        }
        if past:
            view["bar"] = await self._desk.read(self._bar, place, person, at, kept_of(request))
        known, answered = grouped(pairs), False
        if all(one.value for one in fields if one.required):
            try:
                answer = await self._desk.read(self._answer, place, person, from_texts(parameters, pairs))
                known |= {name: [value] for name, value in values_given(answer).items()}
                view["one"] = not isinstance(answer, Page | Lines)
                acting = Acts(self, place, person, at)
                skip = 0 if _has(parameters, _SKIP) else _whole(_one(given, _SKIP))
                view |= await self._desk.read(self._shown, place, answer, at, pairs, acting, skip)
                answered = True
            except (UsageError, NotReady) as error:
                view["problem"] = begun(inert(problem_of(error).detail))
        view["also"] = self._also(place, known, at)
        view["operations"], view["acts_of"] = [], ""
        if answered and (view["one"] or isinstance(answer, Lines) or answer.rows or not _filters(place)):
            view["acts_of"], taking = _taking(place, known, one=view["one"])
            below = place.declared.path[:-1]
            view["operations"] = self.operations(place.lifecycle, person, below, known, taking=taking, at=at)
        return await self._frame.show(request, "reading", _here(place), view)

    def _bar(self, place: Place, person: Person, at: datetime | None, kept: Kept) -> TimeBar | None:
        own = None if place.lifecycle.name == KERNEL else {one.name for one in place.lifecycle.machines}
        ask = self._desk.ask(place.lifecycle, who=person.name)
        try:
            return bar_of(hours_of(ask, at), ask.now, at, own, kept)
        except UsageError:
            return None

    def _answer(self, place: Place, person: Person, parameters: Any) -> Any:
        return place.declared(self._desk.ask(place.lifecycle, who=person.name), parameters)

    def _shown(  # noqa: PLR0917 - all that the page shows
        self, place: Place, answer: Any, at: datetime | None, pairs: list[tuple[str, str]], acting: Acts, skip: int
    ) -> dict[str, Any]:
        now = self._desk.clock.now()
        answers = Answers(self._frame, now, at, place.lifecycle)
        if isinstance(answer, Lines):
            lines = [line for line, _ in zip(iter(answer.lines), range(_MOST_LINES), strict=False)]
            return {"blocks": [Table("", [], [], lines=inert("\n".join(lines), lines=True))]}
        found: dict[str, Any] = {"blocks": answers.blocks(answer, row_acts=acting.of_row, skip=skip)}
        if any(name not in _NOT_CARRIED for name, _ in pairs):
            for block in found["blocks"]:
                if isinstance(block, Table) and block.note == NOTHING_YET:
                    block.note = "Nothing matches these filters."
        painter = Painter(self._frame, now, at)
        found["pictures"] = [
            (picture.says, drawn)
            for picture in place.lifecycle.pictures
            if picture.reading is place.declared
            and (drawn := painter.draw(place.lifecycle, picture, answer, wide=True)) is not None
        ]
        if isinstance(answer, Page):
            found |= _pages(answer, pairs, skip, at)
        return found

    def _also(
        self, place: Place, known: Mapping[str, Sequence[str]], at: datetime | None
    ) -> list[tuple[str, str, str]]:
        """Other readings that tell of the same thing: those whose argument is known here."""
        found = []
        for other in places(self._desk.program.app):
            declared = other.declared
            if (
                other.lifecycle is not place.lifecycle
                or declared is place.declared
                or not isinstance(declared, Reading)
            ):
                continue
            names = [one.name for one in fields_of(declared.parameters) if one.extra("argument")]
            if (
                names
                and names[0] in known
                and (place.lifecycle.name != KERNEL or declared.path[0] == place.declared.path[0])
            ):
                link = self._frame.link("read", *segments(other), at=at, **{names[0]: known[names[0]][0]})
                found.append((declared.name, declared.says, link))
        return found

    def operations(
        self,
        lifecycle: AnyLifecycle,
        person: Person,
        below: tuple[str, ...] = (),
        given: Mapping[str, Sequence[str]] | None = None,
        *,
        taking: Collection[str] | None = None,
        at: datetime | None = None,
    ) -> list[dict[str, str]]:
        """What can be done there, with what is known already; what cannot be done says why.

        `taking`: only what takes one of these parameters.
        """
        found = []
        for place in places(self._desk.program.app):
            declared = place.declared
            if place.lifecycle is not lifecycle or not isinstance(declared, Operation):
                continue
            if declared.path[: len(below)] != below or (lifecycle.name == KERNEL and not below):
                continue
            if taking is not None and not any(one.name in taking for one in fields_of(declared.parameters)):
                continue
            offered = self._offered(place, person, given or {})
            why = offered["why"] or ("" if at is None else NO_PAST)
            found.append(offered | {"name": " ".join(declared.path[len(below) :]), "why": why})
        return found

    def _offered(self, place: Place, person: Person, given: Mapping[str, Sequence[str]]) -> dict[str, str]:
        declared = place.declared
        why = "" if person.may(declared.role) else f"this needs the role {declared.role}; yours is {person.role}"
        names = {one.name for one in fields_of(declared.parameters)}
        known = {
            one: value
            for name, value in given.items()
            for one in (name if name in names else f"{name}s",)  # one of many, where an operation takes many
            if name not in _NOT_CARRIED and one in names
        }
        pairs = [(name, value) for name, values in known.items() for value in values]
        command = command_of(place, pairs)
        link = self._frame.link("do", *segments(place)) + (f"?{urlencode(pairs)}" if pairs else "")
        return {"name": declared.name, "says": declared.says, "link": link, "why": why, "command": command}

    def step(self, name: str, given: Mapping[str, str], person: Person) -> dict[str, str] | None:
        """A reading or an operation by its name; None: there is none."""
        for place in places(self._desk.program.app):
            if place.name == name:
                if isinstance(place.declared, Operation):
                    return self._offered(place, person, {name: [value] for name, value in given.items()}) | {
                        "name": place.declared.path[-1]
                    }
                return {"name": name, "says": place.declared.says, "why": "",
                        "link": self._frame.link("read", *segments(place)) + f"?{urlencode(given)}"}  # fmt: skip
        return None

    async def ask(self, request: Request) -> Response:
        """An operation: its parameters as a form."""
        place = self.place(request.path_params["path"], Operation)
        person = await self._frame.allow(request)
        given = grouped(request.query_params.multi_items())
        return await self._page(request, place, person, given, {})

    async def act(self, request: Request) -> Response:
        """What it would do, or doing it: the form says which. Only what was shown is done."""
        place = self.place(request.path_params["path"], Operation)
        given = await form_of(request, _MOST_FIELDS)
        person = await self._frame.allow(request, place.declared.role, form=_one(given, "csrf"))
        if self._frame.at(request) is not None:
            raise Problem(HTTPStatus.BAD_REQUEST, NO_PAST)
        acting = Acting(self._desk, self._frame.access, place)
        parameters, reason = place.declared.parameters, _one(given, "reason").strip()
        assert isinstance(place.declared, Operation)  # noqa: S101 - asked for as one
        try:
            if place.declared.wants_reason and not reason:
                raise BadParameters({"reason": "is missing: the history keeps why something was done by hand"})
            own = {name: values for name, values in given.items() if name not in _OWN or _has(parameters, name)}
            wanted = from_texts(parameters, pairs_of(parameters, own))
            if _one(given, "act") != "apply":
                _, planned = await self._desk.act(acting.planned, person, wanted, reason or "preview")
                return await self._page(request, place, person, given, {"preview": self._previewed(planned.preview)})
            done = await self._desk.act(self._apply, acting, person, (wanted, reason, _one(given, "digest")))
        except UsageError as error:
            refusal = problem_of(error)
            shown = {"problem": begun(inert(refusal.detail))}
            return await self._page(request, place, person, given, shown, refusal.status)
        return await self._page(request, place, person, {}, {"done": self._done(done)})

    def _apply(self, acting: Acting, person: Person, wanted: tuple[Any, str, str]) -> Done:
        parameters, reason, digest = wanted
        return acting.carried(*acting.agreed(person, parameters, reason, digest))

    async def _page(  # noqa: PLR0917 - all that the page shows
        self, request: Request, place: Place, person: Person, given: Any, more: dict[str, Any], status: int = 200
    ) -> Response:
        declared = place.declared
        assert isinstance(declared, Operation)  # noqa: S101 - the callers' choice
        at = self._frame.at(request)
        why_not = NO_PAST if at is not None else ""
        if not person.may(declared.role):
            why_not = f"this needs the role {declared.role}; yours is {person.role}"
        view = {
            "name": _title(place),
            "of": _about(declared.parameters, given),
            "says": declared.says,
            "fields": form_fields(declared.parameters, given),
            "reason": inert(_one(given, "reason")),
            "wants_reason": declared.wants_reason,
            "why_not": why_not,
            "preview": None,
            "done": None,
            "problem": "",
            "bar": None,
            "command": command_of(place, pairs_of(declared.parameters, given)),
            **more,
        }
        if at is not None:
            view["bar"] = await self._desk.read(self._bar, place, person, at, kept_of(request))
        return await self._frame.show(request, "operation", _here(place), view, status)

    def _previewed(self, preview: Preview) -> dict[str, Any]:
        answers = Answers(self._frame, self._desk.clock.now())
        sample = [[(answers.reference(ref), "")] for ref in preview.sample]
        skipped = [[(answers.plain(why), ""), (answers.plain(f"{n:,}"), "num")] for why, n in preview.skipped.items()]
        blocks = [Table("For example", [("unit", "")], sample)] if sample else []
        if skipped:
            blocks.append(Table("Left as they are", [("why", ""), ("how many", "num")], skipped))
        return {
            "says": begun(inert(preview.says)),
            "count": preview.count,
            "digest": preview.digest,
            "warnings": list(map(inert, preview.warnings)),
            "blocks": blocks,
        }

    def _done(self, done: Done) -> dict[str, Any]:
        follows = done.action or done.follows
        lines = [f"{inert(why)}: {count:,} left as they are" for why, count in done.skipped.items()]
        if done.secret is not None:
            lines.append(f"{done.secret} (shown once)")
        link = "" if follows is None else self._frame.unit_link(follows)
        if done.action is not None:
            link = self._frame.link("read", "bulk", "show", action=done.action.partition(":")[2] or done.action)
        return {"says": inert(done.says), "follows": follows, "link": link, "lines": lines}


def _lasting(place: Place, pairs: Sequence[tuple[str, str]]) -> str:
    """The address of a page at any moment."""
    kept = [pair for pair in pairs if pair[0] != AT]
    return f"{place.path}?{urlencode(kept)}" if kept else place.path


def _about(parameters: Any, given: Mapping[str, Sequence[str]]) -> str:
    """What a page is about, where that is one thing: the one value of its argument."""
    name = next((one.name for one in fields_of(parameters) if one.extra("argument")), None)
    values = [] if name is None else [one for one in given.get(name, ()) if one]
    return inert(values[0]) if len(values) == 1 and "\n" not in values[0] else ""


def _has(parameters: Any, name: str) -> bool:
    return any(one.name == name for one in fields_of(parameters))


def _one(given: dict[str, list[str]], name: str) -> str:
    return next(iter(given.get(name, ())), "")


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < _DIGITS else 0


def _pages(answer: Page[Any], pairs: list[tuple[str, str]], skip: int, at: datetime | None) -> dict[str, str]:
    """Where the next rows are, and the first ones where these are not; at the same moment."""
    pairs = [*(pair for pair in pairs if pair[0] != AT), *([] if at is None else [(AT, instant_text(at))])]
    kept, found = [pair for pair in pairs if pair[0] != "after"], {}
    if len(kept) < len(pairs) or skip:
        found["begins"] = f"?{urlencode(kept)}"
    if skip + PAGE < len(answer.rows):
        found["next"] = f"?{urlencode([*pairs, (_SKIP, skip + PAGE)])}"
    elif answer.next is not None:
        found["next"] = f"?{urlencode([*kept, ('after', answer.next)])}"
    return found


class Acts:
    """What can be done with a row of a list: operations of the same group that take what the row is called."""

    def __init__(self, declared: Declared, place: Place, person: Person, at: datetime | None) -> None:
        self._person = person
        self._declared = declared
        group = place.declared.path[:-1]
        self._places = [
            one
            for one in places(declared.app)
            if at is None
            and group
            and one.lifecycle is place.lifecycle
            and isinstance(one.declared, Operation)
            and one.declared.path[:-1] == group
        ]

    def of_row(self, row: Any) -> list[dict[str, str]]:
        """The operations for this row."""
        lead = next((one for one in fields_of(type(row)) if one.extra("leads")), None)
        if lead is None or not self._person.may(Role.OPERATOR):
            return []
        name, value = lead.extra("gives") or lead.name, str(getattr(row, lead.attribute))
        found = []
        for place in self._places:
            names = {one.name for one in fields_of(place.declared.parameters)}
            known = next((one for one in (name, f"{name}s") if one in names), None)
            if known is not None and self._person.may(place.declared.role):
                offered = self._declared.step(place.name, {known: value}, self._person)
                found.append((offered or {}) | {"name": place.declared.path[-1]})
        return found


def values_given(answer: Any) -> dict[str, str]:
    """What an answer about one thing knows of it, as parameters are called."""
    found: dict[str, str] = {}
    if not isinstance(answer, msgspec.Struct) or isinstance(answer, Page):
        return found
    for one in fields_of(type(answer)):
        value = getattr(answer, one.attribute)
        name = one.extra("gives") or (one.name if one.extra("leads") else None)
        if isinstance(value, msgspec.Struct):
            found |= values_given(value)
        elif name is not None and value is not None:
            found[name] = str(value)
    return found


def segments(place: Place) -> list[str]:
    """The parts of its address."""
    return place.path.strip("/").split("/")


def _follows(place: Place) -> str:
    """What its page follows. A reading of the kernel may tell of any machine."""
    own = place.lifecycle.name != KERNEL
    return " ".join(one.name for one in place.lifecycle.machines) if own else EVERYTHING


def _here(place: Place) -> str:
    return place.lifecycle.name if place.lifecycle.name != KERNEL else _named(place.declared.path[0])


def _named(word: str) -> str:
    """The first word of a command, as the menu has it."""
    return {"dead": "Dead letters", "bulk": "Bulk actions", "token": "Tokens"}.get(word, word.capitalize())


def _filters(place: Place) -> Collection[str]:
    """The parameters that choose what is listed."""
    return {field.name for field in fields_of(place.declared.parameters)} - {*_NOT_CARRIED}


def _taking(place: Place, known: Mapping[str, Any], *, one: bool) -> tuple[str, Collection[str] | None]:
    """Below which words an answer offers operations, and which parameters these must take; None: any."""
    if one:
        return "Act on it", {*known, *(f"{name}s" for name in known)}
    filters = _filters(place)
    if place.declared.path[-1] == "list" and not filters:
        return "Act", None
    return "Act on all that match", filters


def _title(place: Place) -> str:
    """What stands above its page: `dead list` is "Dead letters", and `gates history` "Gates: history"."""
    first, *rest = place.name.split()
    if isinstance(place.declared, Reading) and (rest == ["list"] or len(rest) > 1):
        rest = [one for one in rest if one not in {"list", "show"}]
    return f"{_named(first)}: {' '.join(rest)}" if rest else _named(first)
