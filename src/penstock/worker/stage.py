"""Stage as a step uses it: `async with io.stage(unit, staged) as stage: await stage.add(rows)`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from penstock.ledger.stage import StageWriter
from penstock.model.clock import Rng
from penstock.model.errors import BrokenFlow
from penstock.worker.executor import Executor
from penstock.worker.patience import patiently

_ROWS_AT_ONCE = 500


class Stage:
    """A batch of rows under one claim, of any number, in bounded memory; sealed at the end of the context.

    When the context ends by an error the batch is left as it is: nobody can see it, and the sweep removes it.
    """

    def __init__(self, writer: StageWriter, executor: Executor, rng: Rng) -> None:
        self._writer = writer
        self._executor = executor
        self._rng = rng
        self._turn = asyncio.Lock()

    @property
    def rows(self) -> int:
        """How many rows were added so far."""
        return self._writer.rows

    @property
    def sealed(self) -> str:
        """The batch's id, for the pointer of the outcome that follows. Raises BrokenFlow before the context is over."""
        if not self._writer.sealed:
            raise BrokenFlow(
                "a stage can be pointed at once it is sealed: after its context has ended without an error"
            )
        return self._writer.stage_id

    async def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of the staged table, without `stage_id`. Raises ClaimLost when the unit was taken away.

        While the ledger is away this waits; the step's deadline is the limit.
        """
        if self._writer.sealed:
            raise BrokenFlow("a sealed stage takes no more rows")
        waiting = iter(rows)
        async with self._turn:  # a handler may fetch several pages at once
            while part := list(itertools.islice(waiting, _ROWS_AT_ONCE)):
                await self._executor.run(self._writer.take, part)
                while self._writer.full:
                    await patiently(self._executor, self._rng, self._writer.write)

    async def add_block(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add rows that are lists of values in the order of `columns`, in one piece: at a fraction of what `add` costs.

        A block has at most 5,000 rows and 4 MB. Raises as `add` does.
        """
        if self._writer.sealed:
            raise BrokenFlow("a sealed stage takes no more rows")
        async with self._turn:
            await self._executor.run(self._writer.take_block, columns, rows)
            while self._writer.full:
                await patiently(self._executor, self._rng, self._writer.write)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await patiently(self._executor, self._rng, self._writer.seal)
