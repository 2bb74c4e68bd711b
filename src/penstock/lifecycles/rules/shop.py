"""What the other side of a price list is to the lifecycle: a catalogue, live prices, and a way to set them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.lifecycles.rules.item import Item
    from penstock.lifecycles.rules.money import Price


class Shop(Protocol):
    """One account of one provider. Its methods raise a StepError when the provider fails."""

    #: What the last answer said of the limit `points`: how much is left, and how fast it refills. None: nothing.
    bucket: tuple[float | None, float | None]

    def catalogue(self) -> AsyncIterator[Sequence[Item]]:
        """All variants, some thousand at a time."""

    async def read(self, ids: Sequence[str]) -> Mapping[str, Price]:
        """The live prices of variants of any products; those that do not exist are absent."""

    async def write(
        self, product_id: str, prices: Mapping[str, Price], before: Mapping[str, Price]
    ) -> Mapping[str, str]:
        """Set prices of variants of one product by one call; those that were refused, and why.

        `before` is what they were a moment ago; where the provider can tell, what others have set since stays. Raises
        InDoubt then, and where nobody knows whether they are set.
        """

    def stream(self) -> AsyncIterator[tuple[str, Price]] | None:
        """The live prices of all variants by one bulk read; None where the provider has none."""

    def costs(self, *, reads: int, writes: int) -> Mapping[str, float]:
        """What a step costs that reads so many variants and sets so many of one product, by the gate's limits."""

    async def close(self) -> None:
        """Close its connections."""


@dataclass(frozen=True, slots=True)
class Configured:
    """An account as it is configured: its shop, and the gate of its calls."""

    name: str
    shop: Shop
    gate: str
    #: How many variants one call reads.
    reads_at_once: int = 250
