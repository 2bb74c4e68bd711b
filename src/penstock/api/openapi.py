"""The OpenAPI 3.1 document, made of the declarations: what each takes, answers and refuses."""

from __future__ import annotations

import types
from datetime import date, datetime, timedelta
from enum import Enum
from importlib.metadata import version
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from penstock.api.idempotency import HEADER, LONGEST
from penstock.api.problems import MEDIA_TYPE, ProblemDetails
from penstock.api.routes import JSON, LINES, PREFIX, UNIT_PATHS, Place, places
from penstock.app.app import App
from penstock.model.unit import Ref
from penstock.operations.carry import KERNEL, Done, Preview
from penstock.operations.conversion import offered
from penstock.operations.declare import Lines, Operation, Page, Reading
from penstock.operations.fields import FieldInfo

_REFERENCE = "#/components/schemas/{name}"
_TEXT = r"^[^\x00]*$"
_FILLED = r"^[^\x00]*[^\s\x00][^\x00]*$"
_SPAN = r"^([1-9][0-9]{0,5}[smhd]|([1-9][0-9]?|100)y)$"
_PROBLEM = {"$ref": "#/components/responses/problem"}
_ERRORS = ("400", "401", "403", "404", "409", "422", "503")


def document(app: App, root_path: str = "", *, is_open: bool = False) -> dict[str, Any]:
    """The whole document; `is_open`: some need no token."""
    found = list(places(app))
    kinds = [ProblemDetails, Preview, Done, *(kind for place in found for kind in _answers(place))]
    # Rows, not pages of them: two pages whose rows have one name would have one name too.
    schemas, components = msgspec.json.schema_components(
        [_row(kind) or kind for kind in kinds], ref_template=_REFERENCE, schema_hook=_schema_hook
    )
    named = dict(zip(kinds, schemas, strict=True))
    known = {kind: schema if _row(kind) is None else _page(schema) for kind, schema in named.items()}
    paths: dict[str, Any] = {}
    for place in found:
        paths |= _paths(place, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version("penstock"), "description": _ABOUT},
        "servers": [{"url": f"{root_path}{PREFIX}"}],
        "security": [{"token": []}, *([{}] if is_open else [])],
        "tags": [{"name": one.name, "description": one.says} for one in app.lifecycles],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {
                "problem": {
                    "description": "What went wrong, and what to do.",
                    "content": {MEDIA_TYPE: {"schema": known[ProblemDetails]}},
                }
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_ABOUT = (
    "Every reading is a GET and changes nothing. Every operation is a POST: /preview shows what it would do with a"
    " digest, /apply does exactly that. A list that goes on has a Link to its next page."
)


def _schema_hook(kind: Any) -> dict[str, Any]:  # noqa: ARG001 - msgspec's own shape
    """What the encoder writes as text."""
    return {"type": "string"}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _row(kind: Any) -> Any:
    """The type of a page's rows; None for any other answer."""
    return get_args(kind)[0] if get_origin(kind) is Page else None


def _page(row: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = {"type": ["string", "null"]}
    counts = {"type": ["object", "null"], "additionalProperties": {"type": "integer"}}
    return {
        "type": "object",
        "required": ["rows", "next", "counts", "note"],
        "properties": {
            "rows": {"type": "array", "items": row},
            "next": text | {"description": "What 'after' takes for the next page."},
            "counts": counts | {"description": "Sums of all that match."},
            "note": text | {"description": "A sentence below the rows."},
        },
    }


def _answers(place: Place) -> list[Any]:
    if not isinstance(place.declared, Reading):
        return []
    return [kind for kind in _alternatives(place.declared.answer) if kind is not Lines]


def _paths(place: Place, known: dict[Any, Any]) -> dict[str, Any]:
    if isinstance(place.declared, Operation):
        return _acts(place, known)
    content: dict[str, Any] = {}
    for kind in _alternatives(place.declared.answer):
        content |= {LINES: {"schema": {"type": "string"}}} if kind is Lines else {JSON: {"schema": known[kind]}}
    answer: dict[str, Any] = {"description": "The answer.", "content": content}
    if get_origin(place.declared.answer) is Page and any(f.name == "after" for f in offered(place.declared.parameters)):
        link = {"description": "The next page, where there is one.", "schema": {"type": "string"}}
        answer["headers"] = {"Link": link}
    fields = offered(place.declared.parameters)
    found = {place.path: {"get": _operation(place, answer) | {"parameters": [_query(one) for one in fields]}}}
    if place.lifecycle.name == KERNEL and place.name in UNIT_PATHS:
        path = UNIT_PATHS[place.name].replace(":path", "")
        others = [_query(one) for one in fields if one.name != "unit"]
        own = _operation(place, answer, f"{place.name} by path") | {"parameters": [*_UNIT, *others]}
        found[path] = {"get": own}
    return found


_UNIT = [
    {"name": name, "in": "path", "required": True, "description": says, "schema": {"type": "string", "minLength": 1}}
    for name, says in (("machine", "The machine."), ("unit_id", "The unit's key; its parts are joined by /."))
]


def _operation(place: Place, answer: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    return {
        "operationId": (name or place.name).replace(" ", "_"),
        "tags": [place.lifecycle.name],
        "summary": place.declared.says,
        "description": f"{place.declared.help}\n\nFor {place.declared.role} and above.",
        "responses": {"200": answer} | dict.fromkeys(_ERRORS, _PROBLEM),
    }


def _query(field: FieldInfo) -> dict[str, Any]:
    many = field.many is not None
    found: dict[str, Any] = {
        "name": field.name,
        "in": "query",
        "required": field.required,
        "description": field.says,
        "schema": _schema(field),
    }
    return found | ({"style": "form", "explode": True} if many else {})


def _acts(place: Place, known: dict[Any, Any]) -> dict[str, Any]:
    operation = place.declared
    assert isinstance(operation, Operation)  # noqa: S101 - the caller's choice
    fields = offered(operation.parameters)
    given = {one.name: {"description": one.says, **_schema(one, json=True)} for one in fields}
    required = [one.name for one in fields if one.required]
    reason = {"type": "string", "pattern": _TEXT, "maxLength": 10_000, "description": "Why, for the history."}
    digest = {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": "What /preview showed."}
    shown = {"description": "What it would do.", "content": {JSON: {"schema": known[Preview]}}}
    done = {"description": "What was done.", "content": {JSON: {"schema": known[Done]}}}
    going_on = {
        **done,
        "description": "It goes on; Location is the unit to follow.",
        "headers": {"Location": {"schema": {"type": "string"}}},
    }
    preview = _operation(place, shown, f"{place.name} preview") | {
        "requestBody": _body(given | {"reason": reason}, required)
    }
    wanted = [*required, "digest", *(["reason"] if operation.wants_reason else [])]
    least = {"pattern": _FILLED} if operation.wants_reason else {}
    apply = _operation(place, done, f"{place.name} apply") | {
        "parameters": [_KEY],
        "requestBody": _body(given | {"reason": reason | least, "digest": digest}, wanted),
    }
    apply["responses"] = {"202": going_on, **apply["responses"]}
    return {f"{place.path}/preview": {"post": preview}, f"{place.path}/apply": {"post": apply}}


_KEY = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "The same key within a day is the same act: it is done once, and answered as before.",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST, "pattern": "^[!-~]+$"},
}


def _body(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _schema(field: FieldInfo, *, json: bool = False) -> dict[str, Any]:
    """How a parameter is written: in a query string, or in JSON, where it may be null as well."""
    if field.many is not None:
        found: dict[str, Any] = {"type": "array", "items": _kind(field.many, field, json=json)}
        return found | ({"minItems": 1} if field.required else {})
    every = [_kind(kind, field, json=json) for kind in field.choices]
    if json and type(None) in get_args(field.kind):
        every.append({"type": "null"})
    found = every[0] if len(every) == 1 else {"anyOf": every}
    default = msgspec.to_builtins(field.default, enc_hook=str) if not isinstance(field.default, timedelta) else None
    return found if field.required or default in (None, [], "") else found | {"default": default}


def _kind(kind: Any, field: FieldInfo, *, json: bool) -> dict[str, Any]:
    examples = {"examples": list(field.meta.examples)} if field.meta.examples else {}
    bounds = {"minimum": field.meta.ge, "maximum": field.meta.le}
    bounds = {name: value for name, value in bounds.items() if value is not None}
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": [str(value) for value in get_args(kind)]}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"type": "string", "enum": [str(member.value) for member in kind]}
    if kind is bool:
        return {"type": "boolean"} if json else {"type": "string", "enum": ["true", "false", "yes", "no"]}
    if kind in (int, float):
        return {"type": "integer" if kind is int else "number", **bounds, **examples}
    if kind is date:
        return {"type": "string", "format": "date", **examples}
    if kind is datetime:
        return {"type": "string", "format": "date-time", **examples}
    if kind is timedelta:
        return {"type": "string", "pattern": _SPAN, **examples}
    if kind is Ref or kind is str:
        return {"type": "string", "pattern": _TEXT, **examples}
    return {"type": "object"}
