"""`penstock web`, `penstock up` and `penstock token` in real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.api.serve import bind
from penstock.ledger.ledger import Ledger
from penstock.model.errors import LedgerUnavailable, UsageError
from tests.support.fleet import ROOT, Member, until

CONFIGURATION = 'lifecycles = ["tests.support.shop:lifecycle"]\n[shop]\n[ledger]\nurl = "{url}"\n{more}'


@pytest.fixture
def folder(ledger_url: str, tmp_path: Path, penstock) -> Path:
    (tmp_path / "penstock.toml").write_text(CONFIGURATION.format(url=ledger_url, more=""))
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0
    return tmp_path


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Member]:
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    member = Member(command, clean | {"PYTHONPATH": path}, folder / "log", cwd=folder)
    try:
        yield member
    finally:
        if member.alive:
            member.kill()


def address(member: Member) -> str:
    said = until(lambda: member.said("web.serving") or not member.alive, "it serves")
    assert said is not True, member.text()
    return str(said[0]["address"]).rstrip("/")


def get(url: str | urllib.request.Request, token: str | None = None) -> tuple[int, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        asked = urllib.request.Request(url, headers=headers) if isinstance(url, str) else url
        with urllib.request.urlopen(asked) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_web_serves_until_it_is_told_to_stop(folder: Path):
    with started(folder, "web", "--address", "127.0.0.1:0") as member:
        home = address(member)
        assert get(f"{home}/readyz") == (200, b"ready\n")
        status, answer = get(f"{home}/api/v1/status")
        assert (status, [one["machine"] for one in json.loads(answer)["machines"]].count("order")) == (200, 1)
        member.process.send_signal(signal.SIGTERM)
        until(lambda: not member.alive, "it ends")
    assert "Traceback" not in member.text()


def post(url: str, given: dict[str, str], **headers: str) -> tuple[int, Any]:
    asked = urllib.request.Request(url, json.dumps(given).encode(), {"Content-Type": "application/json", **headers})
    return get(asked)


#: An answer is not kept before this is over, which is longer than any test. SQLite cannot sleep: it counts.
NEVER_ANSWERED = {
    "sqlite": ["CREATE TRIGGER late BEFORE UPDATE ON api_request BEGIN SELECT count(*) FROM {all}; END"],
    "postgresql": [
        "CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$",
        "CREATE TRIGGER late BEFORE UPDATE ON api_request FOR EACH ROW EXECUTE FUNCTION late()",
    ],
}


@pytest.mark.timeout(180)
def test_killed_between_the_act_and_its_answer_it_is_not_done_again(folder: Path, ledger_url: str):
    every = ", ".join(f"sqlite_master AS m{number}" for number in range(8))
    key, wanted = {"Idempotency-Key": "one"}, {"name": "jo", "role": "viewer"}
    with Ledger.open(ledger_url) as ledger:
        kept = "SELECT (SELECT count(*) FROM token), (SELECT count(*) FROM api_request WHERE answer IS NULL)"

        def counts() -> list[int]:
            ((tokens, keys),) = ledger.read(lambda cursor: cursor.rows(kept))
            return [tokens, keys]

        late = [sql.replace("{all}", every) for sql in NEVER_ANSWERED[ledger_url.partition(":")[0]]]
        ledger.database.write(lambda cursor: [cursor.run(sql) for sql in late])
        with started(folder, "web", "--address", "127.0.0.1:0") as member:
            home = f"{address(member)}/api/v1/token/create"
            wanted |= {"digest": json.loads(post(f"{home}/preview", wanted)[1])["digest"]}

            def ask() -> None:
                with pytest.raises(OSError, match=r"closed|reset"):
                    post(f"{home}/apply", wanted, **key)

            asking = threading.Thread(target=ask)
            asking.start()
            until(lambda: counts() == [1, 1], "it is done, and not answered")
            member.kill()
            asking.join()
        until(lambda: _dropped(ledger, ledger_url), "what was cut off lets go")
        with started(folder, "web", "--address", "127.0.0.1:0") as member:
            status, said = post(f"{address(member)}/api/v1/token/create/apply", wanted, **key)
        assert (status, "look at the history" in json.loads(said)["detail"]) == (409, True)
        assert counts() == [1, 1]


def _dropped(ledger: Ledger, url: str) -> bool:
    """On PostgreSQL whoever was cut off may sleep on, and is ended first."""
    if url.startswith("sqlite"):
        ledger.database.write(lambda cursor: cursor.run("DROP TRIGGER late"))
        return True
    ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'UPDATE api_request%'"
    ledger.read(lambda cursor: cursor.rows(ending))
    try:
        ledger.database.write(lambda cursor: cursor.run("DROP TRIGGER late ON api_request"))
    except LedgerUnavailable:
        return False
    return True


@pytest.mark.parametrize("command", [("up",), ("worker", "--web")])
def test_it_is_served_beside_the_work(folder: Path, command):
    with started(folder, *command, "--address", "127.0.0.1:0") as member:
        home = address(member)
        until(lambda: member.said("worker.started"), "it works")
        until(lambda: get(f"{home}/readyz")[0] == 200, "it is ready")
        (worker,) = json.loads(get(f"{home}/api/v1/workers")[1])["rows"]
        assert worker["worker"] == member.said("worker.started")[0]["worker"]
        member.process.send_signal(signal.SIGTERM)
        until(lambda: not member.alive, "it ends")
    assert member.process.returncode == 0


def test_an_address_that_is_taken(folder: Path, penstock):
    with bind("127.0.0.1:0") as taken:
        wanted = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = penstock("web", "--address", wanted, cwd=folder)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith(f"penstock: {wanted} cannot be served on: Address already in use; give another")
        with started(folder, "up", "--address", wanted) as member:
            until(lambda: member.said("worker.started"), "it works")
            (said,) = member.said("web.refused")
            assert said["address"] == wanted


def test_other_addresses_need_a_token_first(folder: Path, penstock):
    refused = penstock("web", "--address", "0.0.0.0:0", cwd=folder)
    assert (refused.code, "penstock token create NAME --role admin" in refused.err) == (2, True)
    token = penstock("token", "create", "jo", "--role", "viewer", cwd=folder).out.splitlines()[1]
    with started(folder, "web", "--address", "0.0.0.0:0") as member:
        home = address(member).replace("0.0.0.0", "127.0.0.1")
        assert get(f"{home}/api/v1/units")[0] == 401
        assert get(f"{home}/api/v1/units", token)[0] == 200


@pytest.mark.parametrize("command", [("up",), ("worker", "--web")])
def test_beside_the_work_it_is_served_as_soon_as_there_is_a_token(folder: Path, penstock, command):
    with started(folder, *command, "--address", "0.0.0.0:0") as member:
        until(lambda: member.said("web.refused"), "it is refused")
        until(lambda: member.said("worker.started"), "it works")
        token = penstock("token", "create", "jo", "--role", "viewer", cwd=folder).out.splitlines()[1]
        home = address(member).replace("0.0.0.0", "127.0.0.1")
        assert [get(f"{home}/api/v1/units", given)[0] for given in (None, token)] == [401, 200]
        (said,) = member.said("web.refused")
        assert "penstock token create NAME --role admin" in said["error"]
        member.process.send_signal(signal.SIGTERM)
        until(lambda: not member.alive, "it ends")
    assert (member.process.returncode, "Traceback" in member.text()) == (0, False)


def test_it_is_served_as_soon_as_its_address_is_free(folder: Path):
    with contextlib.ExitStack() as taken:
        port = taken.enter_context(bind("127.0.0.1:0")).getsockname()[1]
        with started(folder, "up", "--address", f"127.0.0.1:{port}") as member:
            until(lambda: member.said("web.refused"), "it is refused")
            taken.close()
            assert get(f"{address(member)}/readyz") == (200, b"ready\n")


@pytest.mark.parametrize("command", [("web",), ("up",), ("worker", "--web")])
def test_an_address_that_is_none_is_told_of_who_gave_it(folder: Path, penstock, command):
    wrong = '"127.0.0.1" must be HOST:PORT'
    by_option = penstock(*command, "--address", "127.0.0.1", cwd=folder)
    assert (by_option.code, by_option.err) == (2, f"penstock: --address: {wrong}\n")
    by_variable = penstock(*command, cwd=folder, env={"PENSTOCK_WEB": "127.0.0.1"})
    assert (by_variable.code, by_variable.err) == (2, f"penstock: PENSTOCK_WEB: {wrong}\n")
    with (folder / "penstock.toml").open("a") as file:
        file.write('[web]\naddress = "127.0.0.1"\n')
    by_file = penstock(*command, cwd=folder)
    assert (by_file.code, by_file.err) == (2, f"penstock: penstock.toml: web.address: {wrong}\n")


def test_an_address_to_serve_on_must_be_one():
    with pytest.raises(UsageError, match=r"'127.0.0.1' is no address to serve on; write HOST:PORT"):
        bind("127.0.0.1")


def test_tokens_are_given_out_listed_and_revoked(folder: Path, penstock):
    shown = penstock("token", "create", "jo", "--role", "admin", "--expires", "30d", "--by", "eve", cwd=folder)
    done, token, hint = shown.out.splitlines()
    assert (done, hint) == ("done: give out a token for jo, as admin", "keep it now: it is not shown again")
    assert token.startswith("pst_")
    twice = penstock("token", "create", "jo", "--role", "admin", cwd=folder)
    assert (twice.code, "revoke it" in twice.err) == (2, True)
    (row,) = json.loads(penstock("token", "list", "--json", cwd=folder).out)["rows"]
    assert (row["name"], row["role"], row["state"], row["created_by"]) == ("jo", "admin", "valid", "eve")
    assert token.split("_")[2] not in penstock("events", "list", "--json", cwd=folder).out
    assert penstock("token", "revoke", "jo", "--yes", cwd=folder).code == 0
    assert json.loads(penstock("token", "list", "--json", cwd=folder).out)["rows"][0]["state"] == "revoked"


def test_neither_uvicorn_nor_starlette_is_loaded_by_other_commands(tmp_path: Path):
    code = (
        "import sys, penstock.cli.main as m\nsys.argv = ['penstock', 'web', '--help']\n"
        "try:\n m.main()\nexcept SystemExit as stopped:\n assert not stopped.code\n"
        "sys.stderr.write(' '.join(n for n in ('uvicorn', 'starlette', 'msgspec') if n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""
