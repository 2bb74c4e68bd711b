"""Whether the step that runs here may still make calls: its worker's lease is looked at right before each of them.

A worker that was stopped (SIGSTOP, a laptop asleep, a machine that was moved) goes on where it was, and others may have
taken its units over meanwhile. So whatever sends asks first. It costs one look at a context variable where there is no
worker, and one at the clock where there is. It holds for tasks that a step starts, too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context

HOLDER: ContextVar[Callable[[], None] | None] = ContextVar("penstock_holder", default=None)
"""What a worker asks of its steps before a call; it raises CancelledError when the lease is over."""


def check() -> None:
    """Return if a call may leave now. Past the lease, end the step that runs here by CancelledError."""
    holder = HOLDER.get()
    if holder is not None:
        holder()


def apart() -> Context:
    """A context like this one, for a task that serves other steps too and outlives this one, such as a login."""
    context = copy_context()
    context.run(HOLDER.set, None)
    return context
