"""Processes of this machine, told from those that have ended and from others of the same number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.ledger.processes import has_ended, this_process
from penstock.model.clock import SystemClock

ME = this_process(SystemClock().boot_id())
pytestmark = pytest.mark.skipif(ME is None, reason="processes can be recognised on Linux only")
SAY = """
from penstock.model.clock import SystemClock
from penstock.ledger.processes import this_process
print(this_process(SystemClock().boot_id()), flush=True)
input()
"""


def another() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-c", SAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_process_is_there_until_it_has_ended():
    process, name = another()
    with process:
        assert not has_ended(name, ME)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(name, ME), "nobody has waited for it yet"
    assert has_ended(name, ME)


def test_another_process_of_the_same_number_is_another():
    assert ME is not None
    *place, number, started = ME.split(" ")
    assert has_ended(" ".join([*place, number, str(int(started) - 1)]), ME)
    assert not has_ended(ME, ME)


def test_what_cannot_be_seen_from_here_has_not_ended():
    assert ME is not None
    boot, namespace, user, _, started = ME.split(" ")
    gone = "4194304"  # above the largest number that Linux gives
    assert has_ended(f"{boot} {namespace} {user} {gone} {started}", ME)
    assert not has_ended(f"another {namespace} {user} {gone} {started}", ME)
    assert not has_ended(f"{boot} pid:[1] {user} {gone} {started}", ME)
    assert not has_ended(f"{boot} {namespace} 4711 {gone} {started}", ME)
    assert not has_ended(f"{boot} {namespace} {user} nonsense {started}", ME)
    assert not has_ended(ME, None)
