"""`penstock units create` with JSON lines on standard input: what only a real process has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GOOD = '{"tenant": "acme", "number": "1", "amount_minor": 5}\n\n{"tenant": "acme", "number": "2", "amount_minor": 6}\n'


@pytest.fixture
def site(penstock, tmp_path: Path) -> Path:
    (tmp_path / "penstock.toml").write_text('lifecycles = ["penstock.examples.invoices:lifecycle"]\n')
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0
    return tmp_path


def create(folder: Path, typed: str | bytes) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "units", "create", "invoice", "--reason", "a test", "--yes"]
    bytes_typed = typed if isinstance(typed, bytes) else typed.encode()
    done = subprocess.run(command, cwd=folder, input=bytes_typed, capture_output=True, check=False, timeout=60)
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_each_line_is_a_unit(site, penstock, mark):
    done = create(site, f"{mark}{GOOD}")
    assert (done.returncode, done.stdout) == (0, "done: create 2 invoice units\n"), done
    assert "invoice:acme/2" in penstock("units", "list", cwd=site).out


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (f"{GOOD}nonsense\n", "line 4 of standard input is not a JSON object"),
        (f"{GOOD}[1]\n", "line 4 of standard input is not a JSON object"),
        (f'{GOOD}{{"tenant": "acme"}}\n', "row 3: number, amount_minor must be set for a new invoice"),
        (GOOD.encode() + b'{"tenant": "\xff"}\n', "line 4 of standard input is not a JSON object"),
        ("", "say what to create"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_nothing_is_written(site, penstock, typed, says):
    done = create(site, typed)
    assert done.returncode == 2, done
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert "invoice:" not in penstock("units", "list", cwd=site).out
