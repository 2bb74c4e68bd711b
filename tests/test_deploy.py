"""What is in deploy/: the dashboard is the catalogue's, and the tools of each file's own kind find nothing wrong."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from deploy import dashboard
from penstock.app.app import App
from penstock.app.discover import load
from penstock.app.metrics import Metrics, catalogue
from penstock.app.shipped import SHIPPED, shipped
from penstock.observe.catalogue import prometheus_name
from tests.operations.conftest import ORDERS, Desk
from tests.support import container
from tests.support.commands import parse
from tests.support.crawl import fetched
from tests.support.databases import temporary_database
from tests.support.fleet import COMMAND, Member, until
from tests.support.pages import ROOT

DEPLOY = ROOT / "deploy"
NAMES = {prometheus_name(metric): metric for metric in catalogue(App(*map(shipped, SHIPPED)))}
INSTALLED = "/opt/penstock/bin/penstock"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def tool(name: str) -> str:
    """A program of the environment or of the machine; a test that needs one that is missing is skipped, and counted."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def silent(*command: str, given: str = "", **more: Any) -> None:
    """Run a checker that says nothing where nothing is wrong."""
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False, **more)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), " ".join(command)


def queries() -> list[str]:
    made = json.loads(dashboard.FILE.read_text())
    return [query for _, asked in dashboard.panels_of(made) for query in asked]


def test_the_dashboard_is_what_the_catalogue_says():
    assert dashboard.FILE.read_text() == dashboard.text(), "it is stale; run 'python -m deploy.dashboard'"


def test_the_dashboard_names_every_metric_and_no_other():
    named = {name.removesuffix("_bucket") for query in queries() for name in re.findall(r"\w*_\w+(?=[\[)])", query)}
    assert named - {"__rate_interval"} == set(NAMES)
    labels = {label for metric in NAMES.values() for label in metric.labels} | {"le"}
    assert {
        one for query in queries() for by in re.findall(r" by \((.*?)\)", query) for one in by.split(", ")
    } == labels


def test_panels_of_the_dashboard_do_not_overlap():
    made = json.loads(dashboard.FILE.read_text())["panels"]
    places = [panel["gridPos"] for panel in made]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert [panel["id"] for panel in made] == list(range(1, len(made) + 1))


def test_prometheus_reads_the_queries_of_the_dashboard(tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries())
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [tool("promtool"), "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, f"{len(rules)} rules found" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_prometheus_finds_nothing_wrong_with_the_metrics(ledger_url):
    desk = Desk(ledger_url, App(ORDERS, *map(shipped, SHIPPED)))
    try:
        desk.orders(3)
        counts = {"": {"reaped": 2}, "order": dict.fromkeys(("claimed", "committed", "steps", "lost", "failed"), 1)}
        text, _ = Metrics(desk.program, desk.ledger.database, lambda: counts).text()
    finally:
        desk.ledger.close()
    silent(tool("promtool"), "check", "metrics", given=text.decode())


_NO_UNITS = set(re.findall(r"\w+", "s ms us ns sec b kb mb gb m h d milliseconds microseconds minutes hours days bits"))
_SUFFIXES = ("_count", "_sum", "_bucket")


@pytest.mark.parametrize(("name", "metric"), NAMES.items())
def test_names_follow_the_rules_that_prometheus_looks_for(name, metric):
    """Those of `promtool check metrics`, for where it is not installed."""
    words = name.split("_")
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    assert metric.says.endswith(".")
    assert name.endswith("_total") == (metric.kind == "counter")
    assert not name.endswith(_SUFFIXES)
    assert _NO_UNITS.isdisjoint(words)
    assert {"gauge", "counter", "histogram", "summary"}.isdisjoint(words)
    assert {"le", "quantile", "__name__"}.isdisjoint(metric.labels)


@pytest.mark.parametrize("name", ["penstock.service", "penstock-worker@.service"])
def test_systemd_finds_nothing_wrong_with_the_units(name, tmp_path):
    checker, text = tool("systemd-analyze"), (DEPLOY / name).read_text()
    assert f"ExecStart={INSTALLED} " in text
    # It looks whether the program is there.
    (tmp_path / name).write_text(text.replace(INSTALLED, shutil.which("true") or sys.executable))
    silent(checker, "verify", str(tmp_path / name), cwd=tmp_path)


def test_the_two_units_differ_in_what_they_run_alone():
    first, second = (
        [
            line
            for line in (DEPLOY / name).read_text().splitlines()
            if not line.startswith(("#", "Desc", "After", "Exec"))
        ]
        for name in ("penstock.service", "penstock-worker@.service")
    )
    assert first == second


class Started:
    """A program as a file of deploy/ starts it, in a folder of its own; its other paths are those of the test."""

    def __init__(self, words: list[str], folder: Path, name: str) -> None:
        assert words[0] in {INSTALLED, "penstock"}
        config = [str(folder / "penstock.toml") if word.startswith("/etc/penstock/") else word for word in words[1:]]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PENSTOCK_CONFIG": str(folder / "penstock.toml"),
        }
        self.member = Member([*COMMAND, *config], environment, folder / f"{name}.log", cwd=folder, umask=0o027)

    def ready(self) -> str:
        """The address at which it says that it is ready."""
        said = until(lambda: self.member.said("web.serving") or not self.member.alive, "it serves")
        assert said is not True, self.member.text()
        address = str(said[0]["address"])
        until(lambda: fetched(f"{address}readyz")[0] == 200, "it is ready")
        return address

    def ended(self, code: int = 0) -> None:
        """As systemd and Compose end it: by SIGTERM, within the time that they give it."""
        self.member.process.send_signal(signal.SIGTERM)
        assert self.member.process.wait(30) == code, self.member.text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.member.alive:
            self.member.kill()


def execs(name: str) -> list[str]:
    return re.findall(r"^ExecStart=(.*)$", (DEPLOY / name).read_text(), re.MULTILINE)[0].split()


@pytest.mark.timeout(120)
def test_the_units_run_what_they_say(tmp_path):
    """Started, reloaded, joined by a further worker, ended; a wrong configuration ends with the code of no restart."""
    unit = (DEPLOY / "penstock.service").read_text()
    file = tmp_path / "penstock.toml"
    own = 'lifecycles = ["penstock.examples.invoices:lifecycle"]\n'
    written = f'{own}[ledger]\nurl = "sqlite:///{tmp_path}/ledger.db"\n[web]\naddress = "127.0.0.1:0"\n'
    file.write_text(written)
    with Started(execs("penstock.service"), tmp_path, "up") as first:
        address = first.ready()
        assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) & 0o027 == 0
        with Started(execs("penstock-worker@.service"), tmp_path, "worker") as second:
            until(lambda: fetched(f"{address}read/workers")[1].count("<tr>") == 3, "two workers are shown")
            assert "ExecReload=/bin/kill -HUP $MAINPID" in unit
            file.write_text(f"{written}[log]\nlevel = 'debug'\n")
            first.member.process.send_signal(signal.SIGHUP)
            until(lambda: len(first.member.said("config.loaded")) > 1, "it reads again")
            second.ended()
        first.ended()
    file.write_text("nonsense = 1\n")
    with Started(execs("penstock.service"), tmp_path, "wrong") as wrong:
        assert wrong.member.process.wait(60) == 2
    assert "RestartPreventExitStatus=2" in unit


@pytest.mark.timeout(180)
def test_the_services_run_what_they_say(tmp_path, postgres_server):
    """In the order in which Compose starts them, on a database of their own: upgrade, two workers, then the desk."""
    services = COMPOSE["services"]
    with temporary_database(postgres_server) as url:
        text = (DEPLOY / "penstock.toml").read_text()
        text = text.replace("postgresql://penstock@postgres/penstock", url).replace("/var/lib/penstock", str(tmp_path))
        text = re.sub(r"(?m)^password = .*$", "", text)
        (tmp_path / "penstock.toml").write_text(text + '\n[web]\naddress = "127.0.0.1:0"\n')
        with Started(services["upgrade"]["command"], tmp_path, "upgrade") as upgrade:
            assert upgrade.member.process.wait(60) == 0, upgrade.member.text()
        desk = [word.replace(":8642", ":0") for word in services["desk"]["command"]]
        with Started(desk, tmp_path, "early") as early:  # nobody could sign in: it ends, and is started again
            assert early.member.process.wait(60) != 0
            assert "token" in early.member.text()
        create = ["penstock", "token", "create", "me", "--role", "admin"]
        with Started(create, tmp_path, "token") as token:
            assert token.member.process.wait(60) == 0, token.member.text()
        worker = services["worker"]["command"]
        with Started(worker, tmp_path, "one") as one, Started(worker, tmp_path, "two") as two:
            one.ready()
            two.ready()
            with Started(desk, tmp_path, "desk") as served:
                assert served.ready().startswith("http://0.0.0.0:")
                served.ended()
            one.ended()
            two.ended()


def test_hadolint_finds_nothing_wrong_with_the_container_file():
    silent(tool("hadolint"), str(DEPLOY / "Containerfile"))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_container_file_builds_an_image_that_runs():
    if why := container.lacking():
        pytest.skip(why)
    with container.built() as image:
        config, said = image.config, image.tried()
    assert said["penstock --version"] == f"penstock {importlib.metadata.version('penstock')}"
    assert said["id"].startswith("uid=10001(penstock) ")
    assert "Permission denied" in said["touch /opt/penstock/x"]
    assert " ".join(said["penstock doctor"].split()) == "verdict: all is well"
    assert said["penstock up"] == "serving; after SIGTERM it ended with code 0"
    assert (config["User"], config["Cmd"]) == ("10001", ["penstock", "up"])
    assert config["Healthcheck"]["Test"][:2] == ["CMD", "python"]


def test_the_container_file_copies_what_is_there_and_is_sent():
    text = (DEPLOY / "Containerfile").read_text()
    copied = [name for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert {"src", "requirements.lock", "pyproject.toml"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    sent = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(sent) == sorted(copied)


def commands_of_files() -> list[Any]:
    """Every command that a file in deploy/ runs."""
    units = [(DEPLOY / name).read_text() for name in ("penstock.service", "penstock-worker@.service")]
    found = [re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)[0].split() for text in units]
    found += [one["command"] for one in COMPOSE["services"].values() if "command" in one]
    found += [json.loads(re.findall(r"^CMD (.*)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)[0])]
    return [pytest.param(words[1:], id=" ".join(words[1:])) for words in found]


@pytest.mark.parametrize("words", commands_of_files())
def test_every_command_that_a_file_runs_is_one(words):
    parse(words, resilient=True)


def test_the_services_refer_to_what_is_there():
    services = COMPOSE["services"]
    assert COMPOSE["name"] == "penstock"  # not the folder's, so that no command need say it
    assert services["worker"]["deploy"]["replicas"] == 2
    for name, service in services.items():
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"]), name
        assert set(service.get("depends_on", ())) <= set(services), name
        mounted = [one.partition(":")[0] for one in service["volumes"]]
        assert [m for m in mounted if m not in COMPOSE["volumes"] and not (DEPLOY / m).exists()] == [], name
        waited = {one["condition"] for one in service.get("depends_on", {}).values()}
        assert waited <= {"service_healthy", "service_completed_successfully"}, name
    assert "healthcheck" in services["postgres"]


SCHEMA = ("--builtin-schema", "vendor.compose-spec", "--quiet")


def test_the_compose_file_is_one_by_the_schema_of_the_specification():
    silent(tool("check-jsonschema"), *SCHEMA, str(DEPLOY / "compose.yaml"))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    shm_size:", "    shm_sizes:"),
        ("condition: service_healthy", "condition: healthy"),
        ("      replicas: 2", "      replicas: [2]"),
        ("\nsecrets:", "\nsecret:"),
    ],
)
def test_a_mistake_in_the_compose_file_is_found_by_the_schema(right, wrong, tmp_path):
    text = (DEPLOY / "compose.yaml").read_text()
    assert text.count(right) == 1
    (tmp_path / "compose.yaml").write_text(text.replace(right, wrong))
    done = subprocess.run([tool("check-jsonschema"), *SCHEMA, str(tmp_path / "compose.yaml")], check=False)
    assert done.returncode == 1


def test_the_configuration_of_the_containers_is_one():
    program = load(DEPLOY / "penstock.toml", environment={})
    assert program.configuration.kernel.ledger.url == "postgresql://penstock@postgres/penstock"
    assert [one.name for one in program.app.own] == ["queries"]
    assert program.warnings() == []
    secret = program.configuration.kernel.ledger.password
    assert str(secret.name if secret is not None else "") == "/run/secrets/ledger-password"
