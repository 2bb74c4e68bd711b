"""What people do to rules: import them, and lock SKUs that no rule may touch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from penstock.lifecycles.rules.queries import catalogue_lacks, require_account, require_rules
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.model.errors import UsageError
from penstock.model.outcome import Write
from penstock.model.spoken import counted
from penstock.operations.declare import Ask, operation
from penstock.operations.fields import Parameters, argument, option
from penstock.operations.plan import Together

if TYPE_CHECKING:
    from penstock.lifecycles.rules.definition import Rule
    from penstock.lifecycles.rules.versions import Changes

_NAMED = 5


class ImportParameters(Parameters, frozen=True):
    """Which rules: those of a file, of a price list, or of the configuration."""

    file: Annotated[
        str | None,
        argument(
            "A TOML or JSON file with [rules.NAME] tables; none: those of the configuration.",
            example="rules.toml",
            terminal=True,
        ),
    ] = None
    prices: Annotated[
        str | None,
        option(
            "A CSV price list: sku, price, compare_at_price; it becomes a rule.", example="prices.csv", terminal=True
        ),
    ] = None
    name: Annotated[str | None, option("The name of the rule that --prices becomes.", terminal=True)] = None
    account: Annotated[str | None, option("The account of --prices.", terminal=True)] = None
    currency: Annotated[str | None, option("The currency of --prices.", example="EUR", terminal=True)] = None


class LockParameters(Parameters, frozen=True):
    """Which SKUs of which account."""

    skus: Annotated[tuple[str, ...], argument("The SKUs.", example="GIFT-CARD")]
    account: Annotated[str, option("The account whose SKUs they are.", example="shop")]


@operation("import", "Put rules into force.", wants_reason=False)
def import_rules(ask: Ask[RulesSettings], wanted: ImportParameters) -> Together:
    """Those of the configuration, unless others are named.

    A rule that has changed gets a new version, and the former is no longer in force. What runs keeps its version.
    """
    from penstock.lifecycles.rules.versions import changes_of, configured_changes, read_file, with_file

    require_rules(ask.reader)
    if wanted.prices is not None:
        rules, source = [_price_list(wanted)], wanted.prices
    elif wanted.name is not None or wanted.account is not None or wanted.currency is not None:
        raise UsageError("--name, --account and --currency belong to --prices")
    elif wanted.file is not None:
        rules, source = read_file(Path(wanted.file)), wanted.file
    else:
        return _imported(configured_changes(ask))
    for rule in rules:
        require_account(ask.settings, rule.account)
        if rule.name in ask.settings.rules:
            raise UsageError(f"the rule {rule.name!r} is one of the configuration; change it there, or rename this one")
    return _imported(changes_of(ask, map(with_file, rules), str(Path(source).absolute())))


@operation("lock", "Keep rules away from SKUs, until they are unlocked.")
def lock(ask: Ask[RulesSettings], wanted: LockParameters) -> Together:
    """Runs that are under way go on; previews from now on leave these SKUs out."""
    locked = _locked(ask, wanted.account)
    skus = [sku for sku in dict.fromkeys(wanted.skus) if sku not in locked]
    if lacking := catalogue_lacks(ask.reader, wanted.account, skus):
        more = f" and {len(lacking) - _NAMED:,} more" if len(lacking) > _NAMED else ""
        raise UsageError(f"the catalogue of {wanted.account} has no SKU {', '.join(lacking[:_NAMED])}{more}")
    already = [f"{sku} is locked already" for sku in dict.fromkeys(wanted.skus) if sku in locked]
    return _changed(ask, wanted.account, skus, f"lock {_counted(skus)} of {wanted.account}", already, locked=True)


@operation("unlock", "Let rules touch SKUs again.")
def unlock(ask: Ask[RulesSettings], wanted: LockParameters) -> Together:
    locked = _locked(ask, wanted.account)
    skus = list(dict.fromkeys(wanted.skus))
    for sku in skus:
        if sku in ask.settings.accounts[wanted.account].locked:
            raise UsageError(f"{sku} is locked by rules.accounts.{wanted.account}.locked of the configuration")
        if sku not in locked:
            raise UsageError(f"{sku} of {wanted.account} is not locked; 'penstock rules locked' lists those that are")
    return _changed(ask, wanted.account, skus, f"unlock {_counted(skus)} of {wanted.account}", [], locked=False)


OPERATIONS = [import_rules, lock, unlock]


def _price_list(wanted: ImportParameters) -> Rule:
    """A rule that sets the prices of a file. Raises UsageError where something is not said."""
    from penstock.lifecycles.rules.definition import read_rules

    if wanted.file is not None:
        raise UsageError("give a file of rules or --prices, not both")
    if missing := [f"--{name}" for name in ("name", "account", "currency") if getattr(wanted, name) is None]:
        raise UsageError(f"--prices needs {', '.join(missing)} too")
    path = Path(str(wanted.prices)).absolute()
    own = {"account": wanted.account, "currency": wanted.currency, "transform": {"prices_file": str(path)}}
    (rule,) = read_rules({"rules": {str(wanted.name): own}}, "rules import")
    return rule


def _imported(changes: Changes) -> Together:
    new = [f"{name} (version {changes.kept[name].version})" for name in changes.new]
    parts = []
    if new:
        parts.append(f"put {counted(len(new), 'rule')} into force: {', '.join(new)}")
    if changes.retired:
        parts.append(f"retire {', '.join(changes.retired)}, which the configuration no longer has")
    same = [f"{name} is unchanged: version {changes.kept[name].version} stays" for name in changes.same]
    return Together(" and ".join(parts) or "import no rule", writes=changes.writes, first=changes.first, warnings=same)


def _locked(ask: Ask[RulesSettings], account: str) -> frozenset[str]:
    from penstock.lifecycles.rules.registry import locked_skus

    require_rules(ask.reader)
    require_account(ask.settings, account)
    return locked_skus(ask.reader, ask.settings, account)


def _changed(
    ask: Ask[RulesSettings], account: str, skus: list[str], says: str, warnings: list[str], *, locked: bool
) -> Together:
    from penstock.lifecycles.rules.tables import locked_sku, locked_sku_log

    row: dict[str, Any] = {"account": account, "locked": locked}
    row |= {"changed_by": ask.who, "reason": ask.reason, "changed_at": ask.now}
    rows = [row | {"sku": sku} for sku in skus]
    writes = [Write(table, rows) for table in (locked_sku, locked_sku_log)] if rows else []
    return Together(says, writes=writes, warnings=warnings, about=skus)


def _counted(skus: list[str]) -> str:
    return skus[0] if len(skus) == 1 else f"{len(skus):,} SKUs"
