"""Help is quick because it loads nothing that it does not need, and it fits its line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.app.app import TAKEN
from penstock.app.kernel import lifecycle as kernel
from penstock.app.lifecycle import AnyLifecycle
from penstock.app.shipped import SHIPPED, shipped
from penstock.cli.declared import DeclaredCommand, lifecycle_group
from penstock.cli.main import COMMANDS, KERNEL, cli
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.settings.kernel import KernelSettings
from penstock.settings.shapes import fields_of
from penstock.worker.schedule_unit import Schedule
from tests.support import readings, shop
from tests.support.terminal import in_terminal

HEAVY = (
    *("aiohttp", "alembic", "asyncio", "psycopg", "pysqlite3", "rich", "sqlalchemy", "starlette", "structlog"),
    *("penstock.ledger.ledger", "penstock.ledger.store.sqlite", "penstock.worker.worker", "penstock.simulators"),
)
HEAVIER = (*HEAVY, "msgspec", "penstock.model.machine", "penstock.settings.file", "penstock.operations")


def loaded(cwd: Path, given: list[str], heavy: tuple[str, ...]) -> list[str]:
    """What of these is loaded once the command has printed its answer."""
    code = (
        "import sys, penstock.cli.main as m\n"
        f"sys.argv = ['penstock', *{given!r}]\n"
        "try:\n m.main()\nexcept SystemExit as stopped:\n assert not stopped.code\n"
        f"sys.stderr.write(' '.join(n for n in {heavy!r} if n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: penstock") == (given[-1] in {"-h", "--help"})
    return done.stderr.split()


@pytest.mark.parametrize("given", ["--help", "-h", "up --help", "init -h", "demo -h", "completion -h", "db --help"])
def test_help_of_the_root_and_of_its_own_commands_loads_next_to_nothing(given, tmp_path):
    (tmp_path / "penstock.toml").write_text("[reports]\n[harvest]\nenabled = false\n")
    assert loaded(tmp_path, given.split(), HEAVIER) == []


@pytest.mark.parametrize("given", [["units", "--help"], ["units", "move", "--help"], ["gates", "list", "-h"]])
def test_help_of_the_kernels_commands_loads_nothing_heavy(given, tmp_path):
    assert loaded(tmp_path, given, HEAVY) == []


@pytest.mark.parametrize("name", SHIPPED)
def test_help_of_a_lifecycle_loads_nothing_heavy(name, tmp_path):
    assert loaded(tmp_path, [name, "--help"], HEAVY) == []


@pytest.fixture(scope="module")
def with_a_ledger(penstock, tmp_path_factory):
    """A folder with every shipped lifecycle switched on, and a ledger that has one unit."""
    folder = tmp_path_factory.mktemp("read")
    (folder / "penstock.toml").write_text("".join(f"[{name}]\n" for name in SHIPPED))
    assert penstock("db", "upgrade", cwd=folder).code == 0
    schedule = Schedule(name="nightly", job="prune", every="1d", settings_version="1")
    with Ledger.open(f"sqlite:///{folder}/penstock.db", kernel.machines) as ledger:
        ledger.birth([schedule], actor=Actor.SCHEDULER, who="scheduler:test")
    return folder


def test_reading_a_ledger_loads_neither_what_makes_it_nor_what_works_on_it(with_a_ledger, penstock):
    """Of what is not there; the demonstration's test asks for what is."""

    def ask(given: list[str]) -> Any:
        answer = penstock(*given, cwd=with_a_ledger)
        return json.loads(answer.out) if answer.code == 0 else None

    every = [given for given in readings.asked(ask, ["schedule:nightly"]) if given[0] not in readings.LOADS_MORE]
    assert len(every) > 60
    for given, code, loads in readings.loading(with_a_ledger, every):
        assert (given, loads) == (given, [])
        assert code in {0, 2}, given


def test_root_help_knows_the_commands_that_the_kernel_declares():
    """The table is written by hand, so that help need not import the kernel."""
    declared = {one.path[0] for one in (*kernel.readings, *kernel.operations)}
    assert {name for name, entry in COMMANDS.items() if not entry.place} == declared


def test_root_help_knows_the_sections_of_the_kernel():
    assert {*KERNEL, "lifecycles"} == {field.key for field in fields_of(KernelSettings)}


def test_no_lifecycle_can_take_the_name_of_a_command_or_of_a_section():
    assert {*COMMANDS, *KERNEL, "lifecycles", kernel.name} <= TAKEN


def test_root_help_has_what_the_configuration_switches_on(penstock, tmp_path):
    (tmp_path / "penstock.toml").write_text(
        'lifecycles = ["tests.support.shop:lifecycle"]\n[reports]\n[harvest]\nenabled = false\n[gates.x]\n'
    )
    sections = penstock("--help", cwd=tmp_path).out.split("\n\n")
    on = next(part for part in sections if part.startswith("Lifecycles switched on here:"))
    off = next(part for part in sections if part.startswith("Lifecycles that can be switched on"))
    assert [line.split()[0] for line in on.splitlines()[1:]] == ["reports", "shop"]
    assert [line.split()[0] for line in off.splitlines()[1:]] == [n for n in SHIPPED if n != "reports"]


@pytest.mark.parametrize("content", ["", "no TOML at all = = =", 'lifecycles = ["no.such.module:x"]', "\0"])
def test_root_help_survives_a_configuration_that_nobody_can_use(penstock, tmp_path, content):
    (tmp_path / "penstock.toml").write_text(content)
    answer = penstock("--help", cwd=tmp_path)
    assert (answer.code, answer.err) == (0, "")
    assert "Look after the ledger:" in answer.out


def test_a_lifecycle_that_is_not_switched_on_says_how(penstock, tmp_path):
    (tmp_path / "penstock.toml").write_text("")
    name = next(iter(SHIPPED))
    reading = shipped(name).readings[0]
    assert penstock(name, "--help", cwd=tmp_path).code == 0
    refused = penstock(name, *reading.path, cwd=tmp_path)
    assert refused.code == 2
    assert refused.err == f"penstock: {name} is not switched on here; add [{name}] to penstock.toml\n"


def test_the_version_and_the_module(tmp_path):
    called = [sys.executable, "-m", "penstock", "--version"]
    done = subprocess.run(called, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("penstock ")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["statsu"], "penstock has no command 'statsu'; did you mean status?"),
        (["harvset"], "penstock has no command 'harvset'; did you mean harvest?"),
        (["xyzzy"], "penstock has no command 'xyzzy'; 'penstock --help' lists them"),
        (["up", "--confg", "x"], "penstock up has no option --confg; did you mean --config?"),
        (["up", "now"], "penstock up: it takes no further argument (now); 'penstock up --help' says what it takes"),
        (["up", "--concurrency", "many"], "--concurrency must be a whole number"),
        (["completion", "bsh"], "SHELL must be one of bash, zsh, fish; did you mean bash?"),
        (["--hepl"], "penstock has no option --hepl; did you mean --help?"),
        (
            ["status", "--config", "nowhere.toml"],
            "nowhere.toml does not exist; 'penstock init' writes a",
        ),
        (["status"], "penstock.db does not exist; 'penstock db upgrade' makes it, --ledger names another"),
    ],
)
def test_what_cannot_be_done_is_one_line(penstock, tmp_path, given, said):
    refused = penstock(*given, cwd=tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"penstock: {said}"), refused.err
    assert refused.err.count("\n") == 1


def test_a_group_without_a_command_shows_its_help(penstock, tmp_path):
    for given in ([], ["db"], ["units"]):
        answer = penstock(*given, cwd=tmp_path)
        assert answer.code == 2
        assert answer.out.startswith("Usage: penstock")


def walk(group: click.Group, ctx: click.Context) -> list[DeclaredCommand]:
    found = []
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            found += walk(command, ctx)
        elif isinstance(command, DeclaredCommand):
            found.append(command)
    return found


@pytest.mark.parametrize("name", ["kernel", "shop", *SHIPPED])
def test_every_declaration_makes_a_command_whose_help_says_what_each_option_is(name):
    ours: dict[str, AnyLifecycle] = {"kernel": kernel, "shop": shop.lifecycle}
    lifecycle = ours.get(name) or shipped(name)
    with click.Context(cli, info_name="penstock") as ctx:
        commands = walk(lifecycle_group(lifecycle), ctx)
        assert {one.declared for one in commands} == {*lifecycle.readings, *lifecycle.operations}
        for command in commands:
            for parameter in command.params:
                assert getattr(parameter, "help", None), f"{command.declared.name} {parameter.name} says nothing"
            assert command.declared.says.endswith("."), command.declared.name


@pytest.mark.parametrize(
    "given", [[], ["units"], ["dead"], ["gates"], ["schedules"], ["db"], *([name] for name in SHIPPED)]
)
def test_help_fits_80_columns_without_cutting_a_sentence(given, tmp_path):
    seen = in_terminal(*given, "--help", cwd=tmp_path, columns=80)
    assert seen.code == 0
    assert [
        line for line in seen.plain.splitlines() if len(line) > 80 or (line.endswith("…") and "Usage" not in line)
    ] == []


def test_completion_offers_commands_options_choices_and_units(penstock, tmp_path):
    (tmp_path / "penstock.toml").write_text('lifecycles = ["tests.support.shop:lifecycle"]\n')
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0

    def offered(words: str) -> set[str]:
        env = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        return {line.partition(",")[2] for line in penstock(cwd=tmp_path, env=env).out.splitlines()}

    assert {"status", "shop", "reports"} <= offered("penstock ")
    assert offered("penstock shop o") == {"orders", "order"}
    assert offered("penstock shop orders --so") == {"--sort"}
    assert offered("penstock shop orders --sort ") == {"number", "day"}
    assert "order:" in offered("penstock why ")
    assert penstock("completion", "bash", cwd=tmp_path).out.startswith("_penstock_completion()")


def test_the_file_that_an_option_names_says_which_lifecycles_there_are(penstock, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "own.toml").write_text('lifecycles = ["tests.support.shop:lifecycle"]\n')
    assert penstock("shop", "check", cwd=tmp_path).code == 2
    named = penstock("shop", "check", "--config", "conf/own.toml", cwd=tmp_path)
    assert "penstock.db does not exist" in named.err
