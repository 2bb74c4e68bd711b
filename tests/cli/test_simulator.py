"""`penstock simulator`: each one as a process of its own, called over its socket."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import click
import pytest

from penstock.app.app import App
from penstock.app.discover import load
from penstock.cli.simulator import command
from penstock.model.clock import VirtualClock
from penstock.simulators.catalogue import SIMULATORS

T = TypeVar("T")
RUN = [sys.executable, "-m", "penstock", "simulator"]
GRAPHQL = "query($u:String!,$p:String!){authenticate{username_and_password(username:$u,password:$p){token}}}"


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address."""
    process = subprocess.Popen([*RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:[0-9]+", first)
        assert found is not None, first + process.communicate()[1]
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def refused(*arguments: object) -> str:
    """The one line that it says, with exit code 2."""
    ended = subprocess.run([*RUN, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended
    return ended.stderr


def ask(address: str, path: str, body: object = None, form: dict[str, str] | None = None) -> tuple[int, bytes]:
    data = urlencode(form).encode() if form else (None if body is None else json.dumps(body).encode())
    try:
        with urlopen(Request(address + path, data, {"content-type": "application/json"}), timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


CALLS: dict[str, tuple[str, dict[str, Any], int]] = {
    "amazon_ads": ("/auth/o2/token", {"form": {"grant_type": "wrong"}}, 400),
    "google_ads": ("/token", {"form": {"grant_type": "wrong"}}, 400),
    "infojobs": ("/api/9/offer", {}, 401),
    "google_sheets": ("/token", {"form": {"grant_type": "wrong"}}, 400),
    "invoices": ("/invoices/acme/1", {}, 404),
    "nivoda": ("/api/diamonds", {"body": {"query": GRAPHQL}}, 200),
    "paged": ("/token", {"form": {"grant_type": "wrong"}}, 400),
    "shopify": ("/admin/oauth/access_token", {"form": {"grant_type": "wrong"}}, 400),
}


@pytest.mark.parametrize("name", SIMULATORS)
def test_it_serves_until_ctrl_c_and_prints_its_configuration(name):
    path, asked, status = CALLS[name]
    with running(name) as (process, address):
        assert ask(address, path, **asked)[0] == status
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        printed = process.stdout.read()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(20) == 0
    configuration = tomllib.loads(printed)
    assert address in json.dumps(configuration)
    for variable in re.findall(r'env = "([A-Z_]+)"', printed):
        assert f"export {variable}=" in printed


@pytest.mark.parametrize("name", SIMULATORS)
def test_its_lines_are_a_whole_configuration(name, tmp_path, monkeypatch):
    options = {option.name: option.default for option in SIMULATORS[name].options} | {"stones": 10}
    served = SIMULATORS[name].make(VirtualClock(), options, [])
    path = tmp_path / "penstock.toml"
    path.write_text("\n".join(served.lines("http://127.0.0.1:8123")))
    for variable, value in served.secrets.items():
        monkeypatch.setenv(variable, value)
    program = load(path)
    program.configuration.check_secrets()
    assert len(program.app.own) == 1
    assert len(program.flows()) > len([m for m in App().machines if m.driven]), "beside those of the kernel"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("arguments", "machine", "status"),
    [
        (("amazon_ads", "--report-seconds", "2", "--fault", "download=cut"), "report", "completed"),
        (("google_ads", "--fault", "search_stream=throttle"), "partition", "success"),
        (("nivoda", "--stones", "200", "--fault", "page=throttle:4"), "harvest_run", "completed"),
    ],
)
def test_a_lifecycle_works_against_it(arguments, machine, status, tmp_path):
    with working_against(arguments, tmp_path) as penstock:
        asked = f"units list --machine {machine} --status {status} --json"
        until(lambda: json.loads(penstock(asked).stdout)["rows"], f"a {machine} is {status}")


@pytest.mark.timeout(300)
def test_prices_are_set_and_compared_against_it(tmp_path):
    """By commands, as prices are: nothing changes them by itself. The comparison downloads all prices at once."""
    trouble = ("--products", "10", "--fault", "update=lose", "--fault", "read=throttle")
    with working_against(("shopify", *trouble), tmp_path, "bulk_read_above = 5") as penstock:
        until(lambda: penstock("rules preview tenth --json").returncode == 0, "the catalogue is read")
        (run,) = json.loads(penstock("rules runs --json").stdout)["rows"]
        assert penstock(f"rules queue {run['run']} --yes").returncode == 0
        until(lambda: json.loads(penstock("rules runs --status APPLIED --json").stdout)["rows"], "it is applied")
        assert penstock(f"rules reconcile {run['run']} --yes").returncode == 0
        (report,) = until(lambda: json.loads(penstock("rules reports --json").stdout)["rows"], "it is compared")
        assert (report["totalChecked"], report["mismatches"]) == (run["targets"], 0)


@contextlib.contextmanager
def working_against(
    arguments: Sequence[str], folder: Path, more: str = ""
) -> Iterator[Callable[[str], subprocess.CompletedProcess[str]]]:
    """A simulator and a worker, each a process; commands can be asked. `more` is for the first section."""
    penstock = [sys.executable, "-m", "penstock"]
    configuration, log = folder / "penstock.toml", folder / "log"
    with contextlib.ExitStack() as stack:
        stack.enter_context(process([*RUN, *arguments], folder, os.environ, configuration))
        printed = until(lambda: written(configuration), "it is served")
        configuration.write_text(re.sub(r"(?m)^(\[.*\])$", rf"\1\n{more}", printed, count=1))
        environment = os.environ | dict(re.findall(r"export (\w+)='(.*)'", printed))
        stack.enter_context(process([*penstock, "up"], folder, environment, log))
        until(lambda: "worker.started" in log.read_text(), "it is up")

        def ask(command: str) -> subprocess.CompletedProcess[str]:
            run = subprocess.run(
                [*penstock, *command.split()], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            assert run.returncode == 0 or "was never read whole" in run.stderr, run.stderr
            return run

        yield ask


@contextlib.contextmanager
def process(command: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path) -> Iterator[None]:
    with output.open("w") as file:
        started = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
    try:
        yield
    finally:
        started.kill()
        started.wait()


def written(path: Path) -> str:
    """The whole configuration; nothing until all of it is there."""
    text = path.read_text()
    return text if "# Set these" in text and text.endswith("'\n") else ""


def until(true: Callable[[], T], what: str) -> T:
    end = time.monotonic() + 100
    while not (found := true()):
        assert time.monotonic() < end, what
        time.sleep(0.2)
    return found


@pytest.mark.parametrize(
    ("name", "fault", "statuses"),
    [
        ("amazon_ads", "token=throttle:2", [400, 429, 400, 429]),
        ("google_ads", "token=fail:2", [400, 500, 400, 500]),
        ("infojobs", "offers=fail:2", [401, 500, 401, 500]),
        ("google_sheets", "token=fail:2", [400, 500, 400, 500]),
        ("nivoda", "authenticate=fail:3", [200, 200, 502, 200]),
        ("nivoda", "authenticate=throttle", [429, 200, 200, 200]),
        ("shopify", "token=fail:2", [400, 502, 400, 502]),
    ],
)
def test_a_fault_comes_when_it_was_asked_for(name, fault, statuses):
    path, asked, _ = CALLS[name]
    with running(name, "--fault", fault) as (_, address):
        assert [ask(address, path, **asked)[0] for _ in statuses] == statuses


def test_trouble_of_the_example_can_be_set():
    invoice = {"tenant": "acme", "number": "1", "amount_minor": 5}
    with running("invoices", "--trouble", "0") as (_, address):
        assert {ask(address, "/invoices", {**invoice, "number": str(n)})[0] for n in range(30)} == {201}
    with running("invoices", "--trouble", "1") as (_, address):
        assert 201 not in {ask(address, "/invoices", {**invoice, "number": str(n)})[0] for n in range(30)}


def test_a_port_of_ones_own():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used: Address already in use; choose another" in refused(
            "invoices", "--port", port
        )
    with running("invoices", "--port", str(port)) as (_, address):
        assert address == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["amazon"], "penstock simulator has no command 'amazon'; did you mean amazon_ads"),
        (["nivoda", "--fault", "page=explode"], "nivoda has no fault 'page=explode'; write OPERATION=FAULT"),
        (["nivoda", "--fault", "page=fail:0"], "after the colon comes a whole number above 0, as in page=fail:10"),
        (["nivoda", "--stones", "-1"], "--stones cannot be negative"),
    ],
)
def test_what_cannot_be_served_is_refused(arguments, says):
    assert says in refused(*arguments)


def test_the_list_names_all_and_help_fits_eighty_columns():
    listed = subprocess.run([*RUN, "--list"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(SIMULATORS)
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize("name", SIMULATORS)
def test_every_fault_can_be_arranged(name):
    simulator = SIMULATORS[name]
    options = {option.name: option.default for option in simulator.options} | {"stones": 10}
    troubles = [simulator.trouble(fault + suffix) for fault in simulator.faults for suffix in ("", ":2")]
    assert simulator.make(VirtualClock(), options, troubles).application is not None


def test_help_names_every_fault():
    context = click.Context(command)
    for name, simulator in SIMULATORS.items():
        found = command.get_command(context, name)
        assert found is not None
        assert all(fault in found.get_help(context) for fault in simulator.faults)


def test_the_catalogue_is_light():
    code = (
        "import sys, penstock.cli.simulator;"
        "print([n for n in ('starlette', 'uvicorn', 'aiohttp', 'sqlalchemy') if n in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert told.stdout.strip() == "[]"
