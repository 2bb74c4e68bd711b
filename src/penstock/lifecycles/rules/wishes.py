"""What several commands are asked with: a run, and some of its targets."""

from __future__ import annotations

from typing import Annotated

from penstock.operations.fields import Parameters, argument, option


class WhichRun(Parameters, frozen=True):
    """A run."""

    run: Annotated[str, argument("The run's id, or the beginning of it.", example="3f2a91c0")]


class TargetsOfRun(WhichRun, frozen=True):
    """Some targets of a run, or all."""

    target: Annotated[tuple[str, ...], option("Only this target, by its variant or its SKU.", example="RING-1")] = ()
