"""Small disks for tests: filesystems of their own that can fill up or become read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs at `folder`, gone afterwards; skips the test where mounting is not permitted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a disk here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, mode: str) -> None:
    """Make the disk read-only (`ro`) or writable again (`rw`)."""
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as out:
        for block in (65_536, 4_096, 512, 1):
            try:
                while True:
                    out.write(b"x" * block)
            except OSError:
                continue
    return filler
