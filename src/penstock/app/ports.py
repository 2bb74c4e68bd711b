"""What the kernel lends to a lifecycle when its flows are built and its jobs run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.model.clock import Clock
from penstock.model.limits import GateLimits, limits_of

if TYPE_CHECKING:
    from penstock.app.program import Program
    from penstock.raw.sink import RawSink
    from penstock.settings.file import KernelSettings


@dataclass(frozen=True, eq=False)
class Ports:
    """The time, landed data, the limits of gates, the settings of the kernel, and the program as a whole."""

    program: Program
    kernel: KernelSettings
    clock: Clock
    limits: Sequence[GateLimits] = ()

    @cached_property
    def raw(self) -> RawSink:
        """Where landed data is kept: `[raw]` of the configuration."""
        from penstock.raw.sink import RawSink

        return RawSink(self.kernel.raw.url)

    def metered(self, gate_id: str) -> bool:
        """Whether anybody has set limits for this gate."""
        return limits_of(gate_id, self.limits) is not None
