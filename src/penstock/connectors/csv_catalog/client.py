"""Signatures of the price list's connector; being filled in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.connectors.prices import CataloguePage, Cost, Refusal, Shop, Variant, VariantPrice
from penstock.model.errors import Fatal, Transient

T = TypeVar("T")


class Run(Protocol):
    """Runs blocking work off the event loop, as `Io.run` does."""

    def __call__(self, work: Callable[..., T], *args: Any) -> Awaitable[T]: ...


class BadCatalogue(Fatal):
    """The file is no price list; `problems` says what is wrong, each with its line."""

    problems: tuple[str, ...] = ()


class CatalogueMoved(Transient):
    """Rows came or went while the pages were read; begin with the first page."""


class CsvCatalogue:
    """A price list in a file. `currency` is for a file without that column."""

    def __init__(self, path: Path, run: Run, *, currency: str | None = None) -> None: ...

    async def shop(self) -> Shop: ...
    async def catalogue_page(self, after: str | None, first: int) -> CataloguePage: ...
    async def variants(self, ids: Sequence[str]) -> tuple[dict[str, Variant], Cost]: ...
    async def update(
        self, product_id: str, changes: Sequence[VariantPrice]
    ) -> tuple[dict[str, Refusal | None], Cost]: ...
    async def close(self) -> None: ...
