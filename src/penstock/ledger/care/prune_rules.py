"""What may be pruned, as conditions in SQL: made from the machines' definitions in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.model.clock import instant_text

_DELIVERY = "event_delivery"


@dataclass(frozen=True, slots=True)
class Finished:
    """A condition on a unit `u`, with its parameters."""

    text: str
    parameters: Mapping[str, Any]


class Eligible:
    """The conditions of one run. `before(machine)` is the moment before which its ended units go."""

    def __init__(
        self, known: Mapping[str, Mapping[str, Any]], before: Callable[[str], datetime | None], instant: str
    ) -> None:
        self._known = known
        self._before = before
        self._instant = instant

    def parents_first(self) -> list[str]:
        """Every machine, a parent before its children."""

        def depth(name: str, seen: tuple[str, ...] = ()) -> int:
            parent = self._parent(name)
            return 0 if parent is None or parent in seen else 1 + depth(parent, (*seen, name))

        return sorted(self._known, key=lambda name: (depth(name), name))

    def finished(self, name: str, *, then: bool) -> Finished | None:
        """Units `u` that ended long ago and belong to no unfinished run; None when the machine has none.

        A unit goes after the parent that counts it. With `then`, also when its parent can go before it.
        """
        before = self._before(name)
        if before is None or not self._known[name].get("terminal"):
            return None
        parameters = {"before": instant_text(before)}
        parts = [self._ended(name, "u", self._instant), *self._not_needed(name, "u")]
        parent = self._parent(name)
        if parent is not None:
            stays = self._join(name, parent, child="u", parent="p")
            moment = self._before(parent)
            if then and moment is not None and self._known[parent].get("terminal"):
                parameters["parent_before"] = instant_text(moment)
                gone = [
                    self._ended(parent, "p", self._instant.replace(":before", ":parent_before")),
                    *self._not_needed(parent, "p"),
                ]
                stays += f" AND NOT ({' AND '.join(gone)})"
            parts.append(f"NOT EXISTS (SELECT 1 FROM {self._known[parent]['table']} p WHERE {stays})")
        return Finished(" AND ".join(parts), parameters)

    def busy(self, name: str) -> str:
        """Units `u` whose history stays whole: an unfinished run, and whatever belongs to one. Empty for none."""
        parts = []
        if list(self._children(name)):
            parts.append(self._unfinished(name, "u"))
        parent = self._parent(name)
        if parent is not None:
            which = self._join(name, parent, child="u", parent="p")
            table = self._known[parent]["table"]
            parts.append(f"EXISTS (SELECT 1 FROM {table} p WHERE {which} AND {self._unfinished(parent, 'p')})")
        return f"({' OR '.join(parts)})" if parts else ""

    def undelivered(self) -> str:
        """Events `e` that nobody waits for any more; empty where nothing is delivered."""
        for definition in self._known.values():
            if definition["table"] == _DELIVERY:
                over = _listed(definition["terminal"])
                return (
                    "(e.tenant_id, e.event_key) NOT IN"
                    f" (SELECT d.tenant_id, d.event_key FROM {_DELIVERY} d WHERE d.status NOT IN ({over}))"
                )
        return ""

    def _parent(self, name: str) -> str | None:
        parent = self._known[name].get("parent")
        return parent["machine"] if parent and parent["machine"] in self._known else None

    def _children(self, name: str) -> Iterator[str]:
        return (child for child in self._known if self._parent(child) == name)

    def _join(self, name: str, parent_name: str, *, child: str, parent: str) -> str:
        by, key = self._known[name]["parent"]["by"], self._known[parent_name]["shape"]["key"]
        return " AND ".join(f"{parent}.{k} = {child}.{b}" for b, k in zip(by, key, strict=True))

    def _unfinished(self, name: str, alias: str) -> str:
        terminal = self._known[name].get("terminal")
        return f"{alias}.status NOT IN ({_listed(terminal)})" if terminal else f"{alias}.status IS NOT NULL"

    def _ended(self, name: str, alias: str, before: str) -> str:
        text = f"{alias}.status IN ({_listed(self._known[name]['terminal'])}) AND {alias}.changed_at < {before}"
        if self._known[name]["shape"]["driven"]:
            text += f" AND {alias}.claimed_by IS NULL AND {alias}.parked_at IS NULL"
        return text

    def _not_needed(self, name: str, alias: str) -> list[str]:
        """It has no child that is unfinished, and nothing refers to it."""
        key = self._known[name]["shape"]["key"]
        referring = [
            f"NOT EXISTS (SELECT 1 FROM {other['table']} k WHERE k.{column} = {alias}.{key[0]})"
            for other in self._known.values()
            for column, target in other["shape"].get("references", {}).items()
            if target == name
        ]
        return referring + [
            f"NOT EXISTS (SELECT 1 FROM {self._known[child]['table']} k"
            f" WHERE {self._join(child, name, child='k', parent=alias)} AND {self._unfinished(child, 'k')})"
            for child in self._children(name)
        ]


def _listed(states: list[str]) -> str:
    return ", ".join(f"'{state}'" for state in states)
