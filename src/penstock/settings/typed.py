"""Settings as a typed struct: a field is a setting, and what is written beside it says what it means.

    class ReportSettings(Settings):
        poll: Annotated[timedelta, says("How often an unfinished report is checked.")] = timedelta(minutes=5)
        secret: Annotated[Secret | None, says("The client's secret.")] = None

        def __post_init__(self) -> None: ...  # across fields: raise ValueError, one line for each thing that is wrong

A field without a default must be given. `None` means that a setting was left out; a file cannot say it.
`reader` reads such a struct from a file, and `sample` writes the commented file and the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NewType, dataclass_transform

import msgspec

from penstock.settings.secret import ConfigError, Secret

__all__ = [
    "ConfigError",
    "Hours",
    "LedgerAddress",
    "Place",
    "Says",
    "Secret",
    "Settings",
    "TimeZone",
    "Url",
    "says",
]

TimeZone = NewType("TimeZone", str)
"""The name of a time zone, such as `Europe/Madrid`."""
Hours = NewType("Hours", str)
"""A window of the day, such as `03:00-06:00`."""
Url = NewType("Url", str)
"""The address of an API: https, or plain http on this machine."""
LedgerAddress = NewType("LedgerAddress", str)
"""`sqlite:///FILE` or `postgresql://USER@HOST/NAME`."""
Place = NewType("Place", str)
"""A file or a folder beside the configuration, or an address such as `s3://bucket/name`."""


class _Said(msgspec.Struct, frozen=True):
    text: str


class Says(_Said, frozen=True, kw_only=True):
    """What a setting means, in one sentence, and what it takes beyond its type.

    `ge`, `le`, `gt`, `lt` and `choices` are bounds; of a list or a table they hold for each item. `examples` are what
    the sample shows where there is no default: values as a file has them, the names of sub-sections, or sub-sections
    by name. `option` and `variable` are how the command line and the environment give the setting. `anchor` makes what
    a file says independent of the folder in which the program was started. `reads` takes the place of the type's
    reader; it raises ValueError with what is allowed ("a list of …"), also for None. `writes` is its reverse.
    `never` reads "never" as None, `filled` refuses an empty list or table, and `private` keeps the value out of errors.
    """

    ge: Any = None
    le: Any = None
    gt: Any = None
    lt: Any = None
    choices: Sequence[Any] | None = None
    examples: Sequence[Any] | Mapping[str, Any] | None = None
    option: str | None = None
    variable: str | None = None
    anchor: Callable[[Any, Path], Any] | None = None
    reads: Callable[[Any], Any] | None = None
    writes: Callable[[Any], Any] | None = None
    never: bool = False
    filled: bool = False
    private: bool = False


says = Says


class _Kind(msgspec.StructMeta):
    """Makes every class of settings frozen and keyword-only."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **wishes: Any) -> _Kind:
        return super().__new__(mcs, name, bases, namespace, **{"frozen": True, "kw_only": True} | wishes)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Settings(msgspec.Struct, metaclass=_Kind, frozen=True, kw_only=True):
    """A section of the configuration. Each field is a setting: `Annotated[type, says("…")]`."""
