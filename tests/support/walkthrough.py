"""Pages of the documentation that are followed as written: their files, edits and commands, in one shell.

A comment before a block says what is done with it: `run`, `run: fails`, `output` of the command before (`output: soon`
where it is asked for until it is so), `file: NAME`, `append: NAME`, `edit: NAME`, `install` (nothing).
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

BLOCK = re.compile(r"^<!-- (\w+)(?:: (.+?))? -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE = 90.0

#: What differs from run to run: in the page it is shown as it was once.
DIFFERS = (
    r"\d{4}-\d\d-\d\d \d\d:\d\d(?: \([^)]*\))?",  # when
    r"\b[0-9a-f]{20}\b",  # a worker
    r"\b[0-9a-f]{16}\b",  # a digest
    r"\b(?=[0-9a-f]*[0-9])[0-9a-f]{8}\b",  # a cause
    r"operator:\w+",
    r"pid \d+ on \S+",
    r"lease has \d+ s",
)


@dataclass(frozen=True)
class Block:
    """A marked block of the page."""

    kind: str
    word: str
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    return [Block(kind, word, language, text) for kind, word, language, text in BLOCK.findall(page)]


def pattern(shown: str) -> re.Pattern[str]:
    """An output as the page shows it: `…` is anything in a line, and any lines where it is alone in one."""
    made = []
    for line in shown.splitlines():
        if line.strip() == "…":
            made.append(r"(?:.*\n)*?")
            continue
        parts = re.split(rf"({'|'.join(DIFFERS)})|(\s*…\s*)|(\s+)", line.strip())
        made.append(r"\s*" + "".join(map(_part, parts)) + r"\s*\n")
    return re.compile("".join(made))


def _part(text: str | None) -> str:
    if not text:
        return ""
    for one in DIFFERS:
        if re.fullmatch(one, text):
            return one
    if "…" in text:
        return ".*"
    return r"[ ]+" if text.isspace() else re.escape(text)


class Shell:
    """One bash for the whole page, as a reader has it: what it started in the background goes on."""

    def __init__(self, folder: Path, scratch: Path, environment: dict[str, str]) -> None:
        self._scratch = scratch
        self._count = 0
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._tell("trap 'failed=1' ERR\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)  # the shell and all that it started: the session is its own
        self._shell.communicate()

    def run(self, commands: str) -> tuple[bool, str]:
        """Whether every command succeeded, and what they said."""
        self._count += 1
        script, mark = self._scratch / f"{self._count}.sh", f"end-of-{self._count}"
        script.write_text(commands)
        self._tell(f"failed=0\n. {script} </dev/null\necho {mark} $failed\n")
        said = self._read_to(mark)
        text, _, ending = said.rpartition(mark)
        return ending.strip() == "0", text

    def _tell(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text.encode())
        self._shell.stdin.flush()

    def _read_to(self, mark: str) -> str:
        assert self._shell.stdout is not None
        said, end = b"", time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as ready:
            ready.register(self._shell.stdout, selectors.EVENT_READ)
            while not re.search(rf"{mark} \d\n".encode(), said):
                assert ready.select(max(0.0, end - time.monotonic())), f"no end after {said.decode()!r}"
                piece = os.read(self._shell.stdout.fileno(), 1 << 16)
                assert piece, f"the shell ended after {said.decode()!r}"
                said += piece
        return said.decode()


def follow(page: str, folder: Path, shell: Shell) -> int:
    """Do what the page says; how many of its blocks were done."""
    todo, count = blocks(page), 0
    for place, block in enumerate(todo):
        path = folder / block.word
        if block.kind == "file":
            path.write_text(block.text)
        elif block.kind == "append":
            path.write_text(f"{path.read_text()}\n\n{block.text}")
        elif block.kind == "edit":
            path.write_text(edited(path.read_text(), block.text))
        elif block.kind == "run":
            follows = todo[place + 1] if todo[place + 1 : place + 2] and todo[place + 1].kind == "output" else None
            run(shell, block, follows)
        count += 1
    return count


def run(shell: Shell, block: Block, shown: Block | None) -> None:
    succeeded, said = shell.run(block.text)
    if shown is not None and shown.word.startswith("soon"):
        unless = shown.word.partition(", unless ")[2]
        end = time.monotonic() + PATIENCE
        while not (pattern(shown.text).fullmatch(said) or (unless and unless in said)) and time.monotonic() < end:
            time.sleep(0.2)
            succeeded, said = shell.run(block.text)
        if unless and unless in said:
            return
    assert succeeded is (block.word != "fails"), f"{block.text}{said}"
    if shown is not None:
        assert pattern(shown.text).fullmatch(said), f"{block.text}\nsaid\n{said}\nand not\n{shown.text}"


def edited(text: str, difference: str) -> str:
    """The text with a change of consecutive lines, which are there once."""
    lines = [line or " " for line in difference.splitlines()]
    before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
    after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
    assert text.count(before) == 1, before
    return text.replace(before, after)


def with_free_ports(page: str, ports: Sequence[str]) -> str:
    """The page with other ports in place of these, so that it can be followed beside other tests."""
    for written, free in zip(ports, list(_free(len(ports))), strict=True):
        page = page.replace(written, free)
    return page


def _free(count: int) -> Iterator[str]:
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield from [str(one.getsockname()[1]) for one in taken]


def environment(**further: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | further
