"""What is typed at a command line, as the value that a parameter takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from penstock.cli.kinds import Kind, instant_kind, span_kind
from penstock.model.unit import Ref

if TYPE_CHECKING:
    from penstock.operations.fields import FieldInfo

_DATE_LENGTH = len("2026-11-01")


def kind_of(field: FieldInfo) -> Kind:
    """How this field is read from text. Raises TypeError for a type that no command line can give."""
    kinds = (field.many,) if field.many is not None else field.choices
    example = (field.meta.examples or [None])[0]
    found = [_kind(kind, field, example) for kind in kinds]
    if len(found) == 1:
        return found[0]
    must = " or ".join(one.must for one in found)
    return Kind(found[0].name, must, lambda text: _first(found, text), [c for one in found for c in one.choices])


def _first(kinds: Sequence[Kind], text: str) -> Any:
    for kind in kinds:
        try:
            return kind.read(text)
        except ValueError:
            continue
    raise ValueError


def _kind(kind: Any, field: FieldInfo, example: Any) -> Kind:
    choices = _choices(kind)
    if choices is not None:
        return Kind("|".join(choices), _one_of(choices), _chooser(choices), list(choices))
    if kind is str:
        return Kind("UNIT" if field.attribute in {"unit", "units"} else "TEXT", "a text", _text)
    if kind is int:
        return Kind("N", _bounded("a whole number", field), lambda text: _within(int(text), field))
    if kind is float:
        return Kind("NUMBER", _bounded("a number", field), lambda text: _within(_finite(text), field))
    if kind is bool:
        flags = {"true": True, "yes": True, "false": False, "no": False}
        return Kind("yes|no", "yes or no", _chooser(flags), ["yes", "no"])
    if kind is date:
        return Kind("DATE", f"a date, for example {example or '2026-11-01'}", _date)
    if kind is datetime:
        return instant_kind(example)
    if kind is timedelta:
        return span_kind(example)
    if kind is Ref:
        return Kind("UNIT", f"machine:key, for example {example or 'invoice:acme/17'}", _ref)
    msg = f"{field.attribute}: a command line cannot give {kind!r}"
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
    from penstock.model.errors import BadReference

    try:
        return Ref.parse(text)
    except BadReference as error:
        raise ValueError from error
