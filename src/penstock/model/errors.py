"""Every error that Penstock raises, in one tree.

PenstockError
├── UsageError            what was asked cannot be done; says what to do (exit code 2)
│   ├── MachineError      a machine's declaration is wrong
│   ├── UnknownMachine    no machine of that name
│   ├── UnknownUnit       no unit of that reference
│   ├── BadReference      a unit reference that cannot be read
│   ├── BadInstant        a text that is no instant
│   ├── PlanChanged       what an operation would change is no longer what was shown
│   ├── TooLarge          a value or an event that is larger than a ledger keeps (in a step, a BrokenFlow)
│   └── IllegalMove       no such edge, or not for that actor
├── LedgerError           the database refuses or cannot answer
│   ├── LedgerUnavailable     away for now: wait and try again
│   │   ├── LedgerBusy        a lock or a time limit was in the way: try a part of it again
    │   │   └── CommitUnknown     the answer to COMMIT was lost: ask before trying again
│   ├── LedgerRefused     a constraint or a trigger said no: this batch will never commit
│   ├── LedgerBroken      corrupt, or not a database: stop
│   └── LedgerMismatch    not a ledger of this program's version
├── StepError             what a connector says of a failed call, classified once
│   ├── Transient         may work later: retry with backoff
│   ├── Throttled         the provider asks to slow down: the gate closes, nobody is charged
│   ├── Rejected          this item will never work: dead letter
│   ├── Fatal             credentials or configuration: the account stops
│   └── InDoubt           sent, and the answer is unknown: look before sending again
├── MustWait              something of our own that a step needs is away: the unit waits, and nobody is charged
│   └── GateClosed        the gate that a later call of a step needs is closed: the unit waits until it opens
├── ClaimLost             the unit was taken away while its step ran: what it does next has no effect
└── BrokenFlow            a handler broke its contract: a bug, counted as a crashed step
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any


class PenstockError(Exception):
    """Base of everything Penstock raises on purpose."""


class UsageError(PenstockError):
    """What was asked cannot be done; the message says what to do instead."""


class MachineError(UsageError):
    """A machine's declaration is wrong."""


class UnknownMachine(UsageError):
    """No machine of that name is known here."""


class UnknownUnit(UsageError):
    """No unit of that reference is in the ledger."""


class BadReference(UsageError):
    """A unit reference that cannot be read; the form is machine:key, parts joined by '/'."""


class BadInstant(UsageError, ValueError):
    """A text that is no instant; the form is ISO with an offset, 2026-11-15T19:31:00.123Z."""


class IllegalMove(UsageError):
    """The machine has no such edge, or the actor may not pull it."""


class PlanChanged(UsageError):
    """What an operation would change is no longer what was shown; nothing was done."""


class LedgerError(PenstockError):
    """The database refuses or cannot answer."""


class LedgerUnavailable(LedgerError):
    """The database is away for now; nothing was committed."""


class LedgerBusy(LedgerUnavailable):
    """Somebody else's lock, or the time limit of a statement, was in the way; nothing was committed."""


class CommitUnknown(LedgerUnavailable):
    """The connection broke while COMMIT was under way: it may or may not have landed."""


class LedgerRefused(LedgerError):
    """A constraint or a trigger refused the statement; trying again cannot help."""


class LedgerBroken(LedgerError):
    """The database file is corrupt or is not a database; Penstock stops and changes nothing."""


class LedgerMismatch(LedgerError):
    """The ledger was made by another program or version; nothing was changed."""


class StepError(PenstockError):
    """A failed call, classified once, at the connector.

    `answered` says that the provider was there and spoke of this item: its gate is healthy. `through` is the gate's
    pass, where it is not the unit's own, `until` is how long that gate is closed by it, and `trouble` is what the call
    found at each gate that it failed at.
    """

    answered: bool = False
    through: Any = None
    until: datetime | None = None
    trouble: Mapping[str, Any] = MappingProxyType({})


class Transient(StepError):
    """May work later."""


class Throttled(StepError):
    """The provider asks to slow down; `retry_after` in seconds when it said how long."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Rejected(StepError):
    """The item will never work."""

    answered = True


class Fatal(StepError):
    """Credentials or configuration are wrong; the whole account stops."""


class InDoubt(StepError):
    """The call was sent and its answer is unknown."""


class MustWait(PenstockError):
    """Something of our own that the step needs, such as a store, is away until then (None: nobody knows)."""

    def __init__(self, message: str, until: datetime | None = None) -> None:
        super().__init__(message)
        self.until = until


class GateClosed(MustWait):
    """No call may be made through the gate until then; None: until somebody resumes it."""


class ClaimLost(PenstockError):
    """The unit was taken away while its step ran; nothing more of the step is written."""


class BrokenFlow(PenstockError):
    """A handler broke its contract; the step counts as crashed."""


class TooLarge(UsageError, BrokenFlow, ValueError):
    """A value or an event that is larger than a ledger keeps; nothing was written."""
