"""Options that every command has."""

from __future__ import annotations

from pathlib import Path

import click


def config_option() -> click.Option:
    """`--config`, as `_config`."""
    return click.Option(
        ["_config", "--config"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The configuration; by default PENSTOCK_CONFIG, else penstock.toml here.",
    )


def ledger_option() -> click.Option:
    """`--ledger`, as `_ledger`."""
    return click.Option(
        ["_ledger", "--ledger"],
        metavar="URL",
        help="sqlite:///FILE or postgresql://user@host/name; by default PENSTOCK_LEDGER, else the configuration's.",
    )


def flag(name: str, says: str) -> click.Option:
    """`--dry-run`, as `_dry_run`."""
    return click.Option([f"_{name.replace('-', '_')}", f"--{name}"], is_flag=True, help=says)
