"""The log: JSON lines or lines for people, the id of the step, other libraries' words, and no secret."""

from __future__ import annotations

import json
import subprocess
import sys

SECRET = "a-token-that-is-not-told"
HEAD = "import logging, structlog\nfrom penstock.observe.logs import configure_logs\n"


def lines(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_where_there_is_no_terminal_and_readable_lines_on_request():
    (plain,) = lines("configure_logs(); structlog.get_logger().info('x.happened', n=1)")
    said = json.loads(plain)
    assert (said["event"], said["level"], said["n"]) == ("x.happened", "info", 1)
    (shown,) = lines("configure_logs('info', 'console'); structlog.get_logger().info('x.happened', n=1)")
    assert not shown.startswith("{")
    assert "n=1" in shown
    assert "\x1b" not in shown


def test_a_readable_line_shows_control_characters_and_does_not_pass_them_on():
    (shown,) = lines("configure_logs('info', 'console'); structlog.get_logger().info('x', error='a\\x1b[2J\\nb')")
    assert "\x1b" not in shown
    assert "a\\x1b[2J\\nb" in shown


def test_a_logger_that_was_used_before_follows_a_change_of_level():
    code = (
        "log = structlog.get_logger()\nconfigure_logs('error'); log.info('hidden')\n"
        "configure_logs('debug'); log.debug('shown')"
    )
    assert [json.loads(line)["event"] for line in lines(code)] == ["shown"]


def test_a_step_gives_its_lines_its_id():
    code = (
        "from penstock import Unit\nfrom penstock.model import correlation\n"
        "configure_logs(); log = structlog.get_logger()\n"
        "log.info('before')\n"
        "correlation.STEP.set(('invoice', Unit(status='x', unit_id='acme/17', version=4), 3)); log.info('within')"
    )
    before, within = map(json.loads, lines(code))
    assert "correlation" not in before
    assert within["correlation"] == "invoice:acme/17@4+2"


def test_what_a_library_says_is_a_line_like_the_others_and_tells_no_secret():
    code = (
        f"from penstock.settings.redaction import conceal\nconceal({SECRET!r}); configure_logs()\n"
        "log = logging.getLogger('some.library')\n"
        f"try:\n raise ValueError({SECRET!r})\nexcept ValueError:\n log.exception('gone')\n"
        "log.debug('not asked for')"
    )
    (line,) = lines(code)
    said = json.loads(line)
    assert (said["event"], said["logger"], said["level"]) == ("library.said", "some.library", "error")
    assert "ValueError: [secret]" in said["text"]


def test_the_traceback_of_a_bug_tells_no_secret():
    code = (
        f"from penstock.settings.redaction import conceal\nconceal({SECRET!r}); configure_logs()\n"
        f"raise RuntimeError({SECRET!r})"
    )
    found = lines(code)
    assert found[-1] == "RuntimeError: [secret]"
    assert not any(SECRET in line for line in found)


def test_the_traceback_of_a_bug_in_a_command_tells_no_secret():
    code = f"""
import sys
from penstock.cli import main as program
from penstock.cli import run
from penstock.settings.redaction import conceal
conceal({SECRET!r})

def stumble(**given) -> None:
    raise RuntimeError({SECRET!r})

run.up.callback = stumble
sys.argv = ["penstock", "up"]
program.main()
"""
    found = lines(code)
    assert found[-1] == "RuntimeError: [secret]"
    assert not any(SECRET in line for line in found)
