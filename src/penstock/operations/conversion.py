"""A parameter as text and as JSON, and the value that it takes: one reading of both for every surface.

A text is what is typed at a command line, and what a query string has. JSON has numbers, truth values and lists of its
own; what it has no type for (a date, an instant, a span, a unit) is the same text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any, Literal, TypeVar, get_args, get_origin

from penstock.model.errors import BadReference, UsageError
from penstock.model.forms import Form, instant_form, span_form
from penstock.model.near import near
from penstock.model.unit import Ref
from penstock.operations.fields import FieldInfo, Parameters, fields_of

P = TypeVar("P", bound=Parameters)
_DATE_LENGTH = len("2026-11-01")


def form_of(field: FieldInfo) -> Form:
    """How this field is read from text. Raises TypeError for a type that no text can give."""
    kinds = (field.many,) if field.many is not None else field.choices
    example = (field.meta.examples or [None])[0]
    found = [_kind(kind, field, example) for kind in kinds]
    if len(found) == 1:
        return found[0]
    must = " or ".join(one.must for one in found)
    return Form(found[0].name, must, lambda text: _first(found, text), [c for one in found for c in one.choices])


def _first(forms: Sequence[Form], text: str) -> Any:
    for form in forms:
        try:
            return form.read(text)
        except ValueError:
            continue
    raise ValueError


def _kind(kind: Any, field: FieldInfo, example: Any) -> Form:
    choices = _choices(kind)
    if choices is not None:
        return Form("|".join(choices), _one_of(choices), _chooser(choices), list(choices))
    if kind is str:
        return Form("UNIT" if field.attribute in {"unit", "units"} else "TEXT", "a text", _text)
    if kind is int:
        return Form("N", _bounded("a whole number", field), lambda text: _within(int(text), field))
    if kind is float:
        return Form("NUMBER", _bounded("a number", field), lambda text: _within(_finite(text), field))
    if kind is bool:
        flags = {"true": True, "yes": True, "false": False, "no": False}
        return Form("yes|no", "yes or no", _chooser(flags), ["yes", "no"])
    if kind is date:
        return Form("DATE", f"a date, for example {example or '2026-11-01'}", _date)
    if kind is datetime:
        return instant_form(example)
    if kind is timedelta:
        return span_form(example)
    if kind is Ref:
        return Form("UNIT", f"machine:key, for example {example or 'invoice:acme/17'}", _ref)
    msg = f"{field.attribute}: no text can give {kind!r}"
    raise TypeError(msg)


def _choices(kind: Any) -> dict[str, Any] | None:
    if get_origin(kind) is Literal:
        return {str(value): value for value in get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {str(member.value): member for member in kind}
    return None


def _one_of(choices: dict[str, Any]) -> str:
    return f"one of {', '.join(choices)}"


def _chooser(choices: dict[str, Any]) -> Callable[[str], Any]:
    def choose(text: str) -> Any:
        if text not in choices:
            raise ValueError
        return choices[text]

    return choose


def _bounded(what: str, field: FieldInfo) -> str:
    least, most = field.meta.ge, field.meta.le
    if least is not None and most is not None:
        return f"{what} from {least:,} to {most:,}"
    if least is not None:
        return f"{what}, at least {least:,}"
    return f"{what}, at most {most:,}" if most is not None else what


def _within(value: float, field: FieldInfo) -> float:
    least, most = field.meta.ge, field.meta.le
    if (least is not None and value < least) or (most is not None and value > most):
        raise ValueError
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _text(text: str) -> str:
    if "\0" in text or (not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text)):
        raise ValueError
    return text


def _date(text: str) -> date:
    if len(text) != _DATE_LENGTH:
        raise ValueError
    return date.fromisoformat(text)


def _ref(text: str) -> Ref:
    try:
        return Ref.parse(text)
    except BadReference as error:
        raise ValueError from error


# -- whole structs of parameters


class BadParameters(UsageError):
    """Parameters that cannot be read: each by its name, with what it must be."""

    def __init__(self, wrong: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name} {what}" for name, what in wrong.items()))
        self.wrong = dict(wrong)


def from_texts(kind: type[P], given: Iterable[tuple[str, str]]) -> P:
    """Parameters of a query string: a list is a name that is repeated. Raises BadParameters."""
    texts: dict[str, list[str]] = {}
    for name, text in given:
        texts.setdefault(name, []).append(text)
    return _made(kind, texts, _of_texts)


def from_json(kind: type[P], given: Mapping[str, Any]) -> P:
    """Parameters of a JSON object. Raises BadParameters."""
    return _made(kind, given, _of_json)


def offered(kind: type[Parameters]) -> list[FieldInfo]:
    """The fields that can be given from afar: all but those that belong to the terminal where a command is typed."""
    return [one for one in fields_of(kind) if not one.extra("terminal")]


def _made(kind: type[P], given: Mapping[str, Any], read: Callable[[FieldInfo, Any], Any]) -> P:
    known = {one.name: one for one in offered(kind)}
    wrong = {name: _unknown(name, known) for name in given if name not in known}
    values = {}
    for name, field in known.items():
        try:
            if name in given:
                values[field.attribute] = read(field, given[name])
            elif field.required:
                wrong[name] = f"is missing: {field.says[:1].lower()}{field.says[1:].removesuffix('.')}"
        except _Wrong as refused:
            wrong[name] = str(refused)
    if wrong:
        raise BadParameters(wrong)
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _unknown(name: str, known: Iterable[str]) -> str:
    close = near(name, list(known))
    return f"is not a parameter here; did you mean {close[0]}?" if close else "is not a parameter here"


class _Wrong(Exception):
    """What is wrong with one value."""


def _of_texts(field: FieldInfo, texts: list[str]) -> Any:
    if field.many is dict or get_origin(field.many) is dict:
        raise _Wrong("is a list of objects; a query string has none")
    if field.many is not None:
        return [_of_text(field, text) for text in texts]
    if len(texts) > 1:
        raise _Wrong("is given more than once")
    return _of_text(field, texts[0])


def _of_text(field: FieldInfo, text: str) -> Any:
    form = form_of(field)
    try:
        return form.read(text)
    except ValueError:
        raise _Wrong(form.refusal(text)) from None


def _of_json(field: FieldInfo, value: Any) -> Any:
    if value is None and type(None) in get_args(field.kind):
        return None
    if field.many is None:
        return _one_of_json(field, value)
    if not isinstance(value, list):
        raise _Wrong("must be a list")
    if get_origin(field.many) is dict:
        if not all(isinstance(one, dict) for one in value):
            raise _Wrong("must be a list of objects")
        return value
    return [_one_of_json(field, one) for one in value]


def _one_of_json(field: FieldInfo, value: Any) -> Any:
    """A number or a truth value is itself; anything else is a text."""
    kinds = (field.many,) if field.many is not None else field.choices
    form = form_of(field)
    if isinstance(value, str) and not set(kinds) <= {int, float, bool}:
        return _of_text(field, value)
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif (
        isinstance(value, (int, float))
        and math.isfinite(value)
        and (float in kinds or (int in kinds and float(value).is_integer()))
    ):
        try:
            return _within(float(value) if float in kinds else int(value), field)
        except ValueError:
            pass
    raise _Wrong(f"must be {form.must}" if bool not in kinds else "must be true or false")
