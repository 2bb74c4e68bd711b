"""Which lifecycles run: by section, by name, by entry point; and what is refused, in one line each."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path

import pytest
import sqlalchemy as sa

from penstock.app.app import App
from penstock.app.discover import load
from penstock.app.lifecycle import Data, Lifecycle, NoSettings
from penstock.model.errors import UsageError
from penstock.model.machine import Machine
from penstock.settings.typed import ConfigError
from tests.support.crash_app import JOB, lifecycle
from tests.support.machines import INVOICE


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "penstock.toml"


def names(file: Path) -> list[str]:
    return [one.name for one in load(file, environment={}).app.own]


def refusal(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, environment={})
    return str(caught.value)


def test_a_section_switches_a_shipped_one_on_and_enabled_off_again(file: Path) -> None:
    file.write_text("[reports]\n[harvest]\nenabled = false\n")
    assert names(file) == ["reports"]


def test_ones_own_is_named_and_needs_no_section(file: Path) -> None:
    file.write_text('lifecycles = ["tests.support.crash_app:lifecycle"]\n')
    assert names(file) == ["crash"]
    file.write_text('lifecycles = ["tests.support.crash_app:lifecycle"]\n[crash]\nenabled = false\n')
    assert names(file) == []


def test_a_module_beside_the_configuration_is_found(file: Path) -> None:
    (file.parent / "beside_this_file.py").write_text(
        textwrap.dedent("""
            from penstock.app.lifecycle import Lifecycle, NoSettings
            lifecycle = Lifecycle("mine", "Mine alone.", NoSettings)
        """)
    )
    file.write_text('lifecycles = ["beside_this_file:lifecycle"]\n')
    assert names(file) == ["mine"]


def test_an_unknown_section_is_told_with_the_one_that_was_meant(file: Path) -> None:
    file.write_text("[report]\n[quite_other]\n")
    lines = refusal(file).splitlines()
    assert lines[0] == f"{file}: [report] is not a section or a lifecycle; did you mean [reports]?"
    assert lines[1].startswith(f"{file}: [quite_other] is not a section or a lifecycle; known are ")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("nowhere_at_all:lifecycle", "'nowhere_at_all' cannot be imported: ModuleNotFoundError"),
        ("tests.support.crash_app:nothing", "module 'tests.support.crash_app' has no attribute 'nothing'"),
        ("module_that_ends:lifecycle", "'module_that_ends' cannot be imported: SystemExit: 7"),
        ("module_that_errs:lifecycle", "'module_that_errs' cannot be imported: AttributeError: "),
        ("module_called_log:lifecycle", "module_called_log:lifecycle cannot be called 'log': [log] is a section of"),
        (
            "module_called_reports:lifecycle",
            "module_called_reports:lifecycle cannot be called 'reports': Penstock",
        ),
        ("tests.support.crash_app:JOB", "tests.support.crash_app:JOB is a Machine, not a penstock.Lifecycle"),
    ],
)
def test_what_is_no_lifecycle_is_refused_with_its_place(file: Path, place: str, says: str) -> None:
    (file.parent / "module_that_ends.py").write_text("raise SystemExit(7)\n")
    (file.parent / "module_that_errs.py").write_text("import os\nos.nothing\n")
    for name in ("log", "reports"):
        (file.parent / f"module_called_{name}.py").write_text(
            f"from penstock import Lifecycle, NoSettings\nlifecycle = Lifecycle('{name}', 'Mine.', NoSettings)\n"
        )
    file.write_text(f'lifecycles = ["{place}"]\n[ledger]\nurl = 7\n')
    text = refusal(file)
    assert f"{file}: lifecycles: {says}" in text
    assert "ledger.url = 7 must be" in text, "all errors at once"


def test_a_module_that_breaks_says_where_and_its_section_is_not_called_unknown(file: Path) -> None:
    (file.parent / "breaks_within.py").write_text("import json\n\njson.lifecycle\n")
    file.write_text('lifecycles = ["breaks_within:lifecycle"]\n[mine]\nsize = 3\n')
    (line,) = refusal(file).splitlines()
    why = "AttributeError: module 'json' has no attribute 'lifecycle' (breaks_within.py, line 3)"
    assert line == f"{file}: lifecycles: 'breaks_within' cannot be imported: {why}"


def test_a_place_in_another_form_is_one_line(file: Path) -> None:
    file.write_text('lifecycles = ["tests.support.crash_app", 7]\n')
    assert len(refusal(file).splitlines()) == 1
    file.write_text('lifecycles = ["tests.support.crash_app"]\n')
    assert refusal(file).endswith('must be module:attribute, as in "shop.contacts:lifecycle"')


def test_what_a_module_prints_is_no_answer(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file.parent / "module_that_prints.py").write_text(
        "from penstock import Lifecycle, NoSettings\nprint('hello')\n"
        "lifecycle = Lifecycle('loud', 'Loud.', NoSettings)\n"
    )
    file.write_text('lifecycles = ["module_that_prints:lifecycle"]\n')
    assert names(file) == ["loud"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("table", ["worker", "gate", "bulk_item", "transition_log"])
def test_a_table_of_the_kernels_own_is_refused(table: str) -> None:
    mine = Machine("mine", INVOICE.unit, INVOICE.births, INVOICE.edges, table=table, terminal=INVOICE.terminal)
    with pytest.raises(UsageError, match=f"^kernel and other both have a table '{table}'; rename one of them$"):
        _ = App(Lifecycle("other", "Another.", NoSettings, [mine])).data


def test_two_lifecycles_with_one_data_table_are_refused() -> None:
    def data() -> Data:
        return Data([sa.Table("prices", sa.MetaData(), sa.Column("name", sa.Text))])

    with pytest.raises(UsageError, match=r"^one and two both have a table 'prices'; rename one of them$"):
        _ = App(Lifecycle("one", "1.", NoSettings, data=data), Lifecycle("two", "2.", NoSettings, data=data)).data


@pytest.mark.parametrize("key", ["price", f"{JOB.table}.colour", f"{INVOICE.table}.status", JOB.table, "event_log"])
def test_a_past_of_what_a_lifecycle_does_not_have_is_refused(key: str) -> None:
    def made(key: str) -> App:
        prices = Data([sa.Table("prices", sa.MetaData(), sa.Column("name", sa.Text))])
        past = {key: "SELECT * FROM {table}"}
        return App(Lifecycle("other", "Another.", NoSettings, [JOB], data=lambda: prices, past=past))

    assert made("prices").data.tables
    assert made(f"{JOB.table}.status").data.tables
    refusal = f"^other has the past of '{key}', which is no table of its data, nor a column of its machines$"
    with pytest.raises(UsageError, match=refusal):
        _ = made(key).data


def test_two_lifecycles_with_one_machine_are_refused_and_both_are_named() -> None:
    other = Lifecycle("other", "Another.", NoSettings, [JOB])
    with pytest.raises(UsageError, match=r"^crash and other both have a machine 'job'; rename one of them$"):
        App(lifecycle, other)


def test_two_machines_on_one_table_are_refused() -> None:
    twin = Machine("another", INVOICE.unit, INVOICE.births, INVOICE.edges, table=JOB.table, terminal=INVOICE.terminal)
    with pytest.raises(UsageError, match="both have a table 'job'"):
        App(lifecycle, Lifecycle("other", "Another.", NoSettings, [twin]))


def test_two_lifecycles_with_one_data_table_or_one_name_are_refused() -> None:
    def data() -> Data:
        import sqlalchemy

        return Data([sqlalchemy.Table("thing", sqlalchemy.MetaData())])

    one, other = (Lifecycle(name, "With a table.", NoSettings, data=data) for name in ("one", "other"))
    with pytest.raises(UsageError, match=r"^one and other both have a table 'thing'; rename one of them$"):
        _ = App(one, other).data
    with pytest.raises(UsageError, match=r"^2 lifecycles are called 'one'; rename all but one$"):
        App(one, one)


@pytest.mark.parametrize("name", ["units", "dead", "db", "gates", "kernel", "ledger", "prune"])
def test_a_lifecycle_is_not_called_like_a_command_or_a_section(name: str) -> None:
    with pytest.raises(UsageError, match=f"a lifecycle cannot be called '{name}'"):
        App(dataclasses.replace(lifecycle, name=name))


@pytest.mark.parametrize("name", ["", "Upper", "with space", "a/b", "x" * 40])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a lifecycle"):
        dataclasses.replace(lifecycle, name=name)
