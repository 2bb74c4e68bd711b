"""New versions of rules: what an import, or a preview on its way, writes for rules that have changed.

A version never changes. The prices that a rule lists may be more than one transaction carries, so the version is kept
first, not in force; its prices follow, and only then it comes into force, together with the end of the former one.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.ledger.schema.columns import document
from penstock.lifecycles.rules.definition import ListedPrice, Rule, read_rules, with_prices
from penstock.lifecycles.rules.money import minor
from penstock.lifecycles.rules.queries import require_rules
from penstock.lifecycles.rules.registry import CONFIGURATION, Kept, configured_rules
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.model.clock import instant
from penstock.model.errors import UsageError
from penstock.model.outcome import MAX_ROWS, Write

if TYPE_CHECKING:
    from penstock.operations.declare import Ask

_COLUMNS = (
    *("tenant_id", "name", "version", "project_id", "account", "currency", "priority", "active", "description"),
    *("definition", "digest", "source", "current", "created_at", "created_by", "ended_at"),
)
_LARGEST = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Given:
    """A rule as somebody wrote it, with the prices of its file."""

    rule: Rule
    prices: Mapping[str, ListedPrice] | None

    @property
    def digest(self) -> str:
        return (self.rule if self.prices is None else with_prices(self.rule, self.prices)).digest


@dataclass(slots=True)
class Changes:
    """What is written: `first` each by itself, then `writes` together. `kept` are the rules as they are then."""

    new: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    retired: list[str] = field(default_factory=list)
    kept: dict[str, Kept] = field(default_factory=dict)
    first: list[Write] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


def read_file(path: Path) -> list[Rule]:
    """The rules of a TOML or JSON file. Raises UsageError, with everything that is wrong."""
    is_json = path.suffix.lower() == ".json"
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise UsageError(f"{path} is larger than {_LARGEST // 1024**2} MiB, too large for rules")
        found = json.loads(content) if is_json else tomllib.loads(content.decode())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not {'JSON' if is_json else 'TOML'}: {error}") from error
    return read_rules(found, str(path), path.absolute().parent)


def with_file(rule: Rule) -> Given:
    """The rule with the prices of its file, where it names one. Raises UsageError for what cannot be read."""
    from penstock.lifecycles.rules.prices import read_prices

    path = rule.transform.prices_file
    if path is None:
        return Given(rule, None)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return Given(rule, read_prices(lines, rule.currency, path_text=str(path)))
    except OSError as error:
        raise UsageError(f"rule {rule.name!r}: {path} cannot be read: {error.strerror}") from error


def configured_changes(ask: Ask[RulesSettings]) -> Changes:
    """What brings the ledger up to the rules of the configuration; those that it no longer has are retired."""
    changes = changes_of(ask, map(with_file, configured_rules(ask.settings).values()), CONFIGURATION)
    for name, row in _in_force(ask).items():
        if name not in ask.settings.rules and row["source"] == CONFIGURATION:
            changes.retired.append(name)
            changes.kept.pop(name)
            changes.writes.append(_write([_ended(row, ask)]))
    return changes


def changes_of(ask: Ask[RulesSettings], rules: Iterable[Given], source: str) -> Changes:
    """New versions of the rules that mean something else than those in force; the others are the same."""
    from penstock.lifecycles.rules.queries import current_rules

    require_rules(ask.reader)
    changes = Changes(kept=current_rules(ask.reader, ask.settings))
    there, newest = _in_force(ask), _newest(ask)
    for given in rules:
        name, digest = given.rule.name, given.digest
        former = there.get(name)
        if former is not None and former["digest"] == digest:
            changes.same.append(name)
            continue
        version = newest.get(name, 0) + 1
        row = _row(ask, given, digest, version, source)
        ended = [_ended(former, ask)] if former is not None else []
        if given.prices is None:
            changes.writes += [*([_write(ended)] if ended else []), _write([row], "error")]
        else:
            changes.first += [_write([row | {"current": False}], "error"), *_prices(ask, given, version)]
            changes.writes.append(_write([*ended, row]))
        changes.new.append(name)
        listed = given.prices is not None
        changes.kept[name] = Kept(given.rule, version, digest, source, listed)
    return changes


def _write(rows: list[dict[str, Any]], on_conflict: Any = "update") -> Write:
    from penstock.lifecycles.rules.tables import rule

    return Write(rule, rows, on_conflict)


def _row(ask: Ask[RulesSettings], given: Given, digest: str, version: int, source: str) -> dict[str, Any]:
    rule = given.rule
    return {
        "tenant_id": ask.settings.tenant_id,
        "name": rule.name,
        "version": version,
        "project_id": ask.settings.project_id,
        "account": rule.account,
        "currency": rule.currency,
        "priority": rule.priority,
        "active": rule.active,
        "description": rule.description or "",
        "definition": rule.document() | ({"listed": True} if given.prices is not None else {}),
        "digest": digest,
        "source": source,
        "current": True,
        "created_at": ask.now,
        "created_by": ask.who,
        "ended_at": None,
    }


def _ended(row: dict[str, Any], ask: Ask[Any]) -> dict[str, Any]:
    """The row of a rule that is no longer in force."""
    return row | {"current": False, "ended_at": ask.now}


def _prices(ask: Ask[RulesSettings], given: Given, version: int) -> Iterator[Write]:
    """What a version lists, as many rows in each write as a transaction carries."""
    from penstock.lifecycles.rules.tables import rule_price

    rule, columns = given.rule, [column.name for column in rule_price.columns]
    rows = [
        [
            ask.settings.tenant_id,
            rule.name,
            version,
            sku,
            minor(listed.price, rule.currency),
            None if listed.compare_at_price is None else minor(listed.compare_at_price, rule.currency),
        ]
        for sku, listed in (given.prices or {}).items()
    ]
    for start in range(0, len(rows), MAX_ROWS):
        yield Write(rule_price, rows[start : start + MAX_ROWS], "error", columns=columns)


def _in_force(ask: Ask[RulesSettings]) -> dict[str, dict[str, Any]]:
    """The rows of the rules in force, by name, as they can be written again."""
    sql = f"SELECT {', '.join(_COLUMNS)} FROM rule WHERE tenant_id = :tenant AND current ORDER BY name"
    found = {}
    for values in ask.reader.read(lambda cursor: cursor.rows(sql, tenant=ask.settings.tenant_id)):
        row = dict(zip(_COLUMNS, values, strict=True))
        kept = row["definition"]
        row |= {"active": bool(row["active"]), "current": True, "created_at": instant(row["created_at"])}
        found[str(row["name"])] = row | {"definition": document(kept) if isinstance(kept, str) else kept}
    return found


def _newest(ask: Ask[RulesSettings]) -> dict[str, int]:
    sql = "SELECT name, max(version) FROM rule WHERE tenant_id = :tenant GROUP BY name"
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, tenant=ask.settings.tenant_id))
    return {str(name): int(version) for name, version in rows}
