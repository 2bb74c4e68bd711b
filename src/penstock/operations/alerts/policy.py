"""Policies: when somebody should know, as data. The program's own may be changed by `[alerts.policies.*]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from penstock.model.errors import UsageError
from penstock.model.near import near
from penstock.settings.alerts import SEVERITIES, PolicySettings, Severity

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.outbox import EventRow

EVENT = "event"
"""The kind of a policy that is fired by events alone."""
SLOW = ("doctor",)
"""Kinds that have a schedule of their own: they may take minutes."""
#: Fields of an event that say what it is about, the first that is there.
_SUBJECTS = ("gate", "schedule", "feed", "query", "account", "spreadsheet", "subscriber", "run", "partition", "machine")
_LONGEST = 200


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """When somebody should know.

    `kind` names the condition that is asked of the ledger; `event` has none. `events` fire it, `resolved_by` resolve
    it. Without a condition it is over when `window` has passed without another event. `hold`: how long the condition
    must be true before it fires, and be over before it is resolved.
    """

    name: str
    says: str
    kind: str = EVENT
    severity: Severity = "warning"
    warning: float | None = None
    critical: float | None = None
    window: timedelta = timedelta(days=1)
    hold: timedelta = timedelta(0)
    every: timedelta = timedelta(0)
    match: Sequence[str] = ("*",)
    events: Sequence[str] = ()
    resolved_by: Sequence[str] = ()
    #: The field of an event that says what it is about; of a reference to a unit, its machine.
    subject: str | None = None
    #: Of a subject with parts, as many of them as tell one from the other.
    parts: int | None = None

    def wants(self, subject: str) -> bool:
        """Whether it is for that subject."""
        return matches(subject, self.match)

    def severity_of(self, value: float) -> Severity | None:
        """How bad a value is, the larger the worse; None: not at all."""
        if self.critical is not None and value >= self.critical:
            return "critical"
        return "warning" if self.warning is not None and value >= self.warning else None

    def subject_of(self, event: EventRow) -> str:
        """What an event is about."""
        facts = event.payload if isinstance(event.payload, Mapping) else {}
        names = (self.subject,) if self.subject is not None else (*_SUBJECTS, "subject", "unit")
        found = next((str(facts[name]) for name in names if facts.get(name)), None)
        if found is None:
            found = event.machine or event.event_type
        elif self.subject == "unit" or (self.subject is None and found == facts.get("unit")):
            found = found.partition(":")[0]
        if self.parts is not None:
            found = "/".join(found.split("/")[: self.parts])
        return (found if event.tenant_id == "default" else f"{event.tenant_id}/{found}")[:_LONGEST]


@dataclass(frozen=True, slots=True)
class Found:
    """Something that a policy speaks of is true now."""

    subject: str
    severity: Severity
    says: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    example: str | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """What a condition works with: the ledger, when, and the program as a whole with the settings of its lifecycle."""

    ledger: Ledger
    now: datetime
    program: Any
    settings: Any = None


Condition: TypeAlias = Callable[[Watched, Policy], Iterable[Found]]


def matches(text: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern matches and none that begins with `!` does. Of a text with parts the first one is enough."""
    names = (text, text.partition("/")[0])
    plain = [one for one in patterns if not one.startswith("!")] or ["*"]
    barred = [one[1:] for one in patterns if one.startswith("!")]
    found, kept_out = (any(fnmatchcase(name, one) for name in names for one in ones) for ones in (plain, barred))
    return found and not kept_out


def worse(one: str, other: str) -> bool:
    """Whether the first severity is worse than the second."""
    return _rank(one) > _rank(other)


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1


def conditions_of(program: Any) -> dict[str, tuple[Condition, Any]]:
    """Every kind of policy that this program knows: its condition, and the settings of the lifecycle that brings it."""
    from penstock.operations.alerts.conditions import CONDITIONS

    found: dict[str, tuple[Condition, Any]] = {
        kind: (condition, program.configuration.kernel) for kind, condition in CONDITIONS.items()
    }
    for lifecycle in program.app.own:
        found |= {kind: (one, program.settings(lifecycle)) for kind, one in lifecycle.conditions.items()}
    return found


def policies_of(program: Any) -> dict[str, Policy]:
    """The policies in force, by name. Raises UsageError for one that cannot be."""
    from penstock.operations.alerts.defaults import POLICIES

    usual = {one.name: one for one in POLICIES}
    usual |= {one.name: one for lifecycle in program.app.own for one in lifecycle.policies}
    given: Mapping[str, PolicySettings] = program.configuration.kernel.alerts.policies
    kinds = [EVENT, *conditions_of(program)]
    made = {name: _made(name, given[name], usual, kinds) for name in given}
    found = usual | {name: one for name, one in made.items() if one is not None}
    off = {name for name, settings in given.items() if not settings.enabled}
    return {name: one for name, one in found.items() if name not in off}


def _made(name: str, given: PolicySettings, usual: Mapping[str, Policy], kinds: Sequence[str]) -> Policy | None:
    changes = {
        key: value
        for key in PolicySettings.__struct_fields__
        if key != "enabled" and (value := getattr(given, key)) is not None
    }
    place = f"alerts.policies.{name}"
    kind = changes.get("kind")
    if kind is not None and kind not in kinds:
        raise UsageError(f"{place}.kind: {kind!r} is no kind of policy; kinds are {', '.join(sorted(kinds))}")
    if name in usual:
        return msgspec.structs.replace(usual[name], **changes)
    if not given.enabled:
        return None
    kind = kind or (EVENT if given.events else None)
    if kind is None:
        close = near(name, sorted(usual))
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"{place}: no policy of that name exists; {hint}one of your own needs kind, or events")
    said = {"says": f"{name.replace('_', ' ')}".capitalize() + "."} | changes | {"kind": kind}
    return Policy(name=name, **said)


def fired_by(policies: Iterable[Policy], kind: str) -> Iterator[Policy]:
    """The policies that an event of that kind fires."""
    return (one for one in policies if kind in one.events)
