"""What a step must not do: keep the event loop, or the interpreter, to itself."""

from __future__ import annotations

import asyncio
import ctypes
import re
import time

NAP_SECONDS = 1.5


def spin() -> None:
    while True:
        pass


def doze() -> None:
    time.sleep(600)


def hog() -> None:
    """In C, without letting go of the interpreter's lock; years, as written."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def cling() -> None:
    """The same, waiting for something that never comes: a PyDLL keeps the lock while it calls."""
    ctypes.PyDLL(None).sleep(600)


def nap() -> None:
    time.sleep(NAP_SECONDS)


async def spin_later() -> None:
    await asyncio.sleep(0)
    spin()


async def block(kind: str) -> None:
    """Do what the kind of a job says; nothing for the others."""
    if kind == "child":
        await asyncio.gather(asyncio.sleep(60), spin_later())
    blocks = {"spin": spin, "sleep": doze, "hog": hog, "cling": cling, "nap": nap}
    if kind in blocks:
        blocks[kind]()
