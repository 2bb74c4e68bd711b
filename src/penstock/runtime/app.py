"""What a program brings to a ledger: its machines, its data tables, and how to make its flows."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table

from penstock.errors import UsageError
from penstock.machine import Machine
from penstock.runtime.stepper import AnyFlow


@dataclass(frozen=True, slots=True)
class App:
    """`flows()` is called when a worker starts; machines and tables are known without it."""

    machines: Sequence[Machine]
    flows: Callable[[], Sequence[AnyFlow]]
    data_tables: Sequence[Table[Any]] = ()


def load_app(path: str) -> App:
    """The App at `module:attribute`. Raises UsageError that says what is wrong with the path."""
    module, colon, attribute = path.partition(":")
    if not colon or not module or not attribute:
        msg = f"{path!r} does not name an app; write module:attribute, for example penstock.examples.invoices:app"
        raise UsageError(msg)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        msg = f"cannot import {module!r}: {error}"
        raise UsageError(msg) from error
    except AttributeError:
        msg = f"module {module!r} has no {attribute!r}"
        raise UsageError(msg) from None
    if not isinstance(found, App):
        msg = f"{path} is a {type(found).__name__}, not a penstock App"
        raise UsageError(msg)
    return found
