"""Build the container file here and try the image: `python -m tests.support.container` prints what came of it.

No registry is asked. The base is made of Debian's packages, and the packages of Python are fetched by the lock file
outside of the build, which is given them as a folder of wheels: its own pip is told of no index.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.pages import ROOT

SUITE = "bookworm"
INCLUDED = ("ca-certificates", "python-is-python3", "python3-venv")
_BASE, _IMAGE = "localhost/penstock-base", "localhost/penstock"
_CONFIG = '[ledger]\nurl = "sqlite:////var/lib/penstock/ledger.db"\n[web]\naddress = "127.0.0.1:0"\n[queries]\n'

#: The image's own command, until it serves; then it is stopped as a container is.
_UP = """
penstock up 2>/tmp/log &
for second in $(seq 60); do grep -q web.serving /tmp/log && printf 'serving; ' && break; sleep 1; done
kill -TERM $! && wait $!; echo "after SIGTERM it ended with code $?"
"""
TRIED = {
    "penstock --version": ("penstock", "--version"),
    "id": ("id",),
    "touch /opt/penstock/x": ("sh", "-c", "touch /opt/penstock/x 2>&1 || true"),
    "penstock db upgrade": ("penstock", "db", "upgrade"),
    "penstock doctor": ("penstock", "doctor"),
    "penstock up": ("sh", "-c", _UP),
}
"""What is done in the image, one after the other, as it is shown and as it is said."""


def lacking() -> str | None:
    """Why an image cannot be built here; None where it can."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [name for name in ("buildah", "debootstrap", "unshare") if shutil.which(name, path=path) is None]
    if missing:
        return f"not installed: {', '.join(missing)}; `make buildah` as root"
    return None if os.geteuid() == 0 else "debootstrap and buildah's chroot want root"


@dataclass
class Built:
    """An image, and what it took to make it; all of it is in one folder."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)
    container: str = ""

    def buildah(self, *words: str) -> str:
        store = ("--storage-driver", "vfs", "--root", str(self.folder / "store"), "--runroot", str(self.folder / "run"))
        return _run("buildah", *store, *words, BUILDAH_ISOLATION="chroot", TMPDIR=str(self.folder))

    def run(self, *words: str) -> str:
        """What a command in the image prints, as the image's user."""
        config = f"{self.folder / 'penstock.toml'}:/etc/penstock/penstock.toml:ro"
        return self.buildah("run", "--volume", config, self.container, "--", *words).strip()

    @property
    def config(self) -> Mapping[str, Any]:
        """What the image says of how it is run."""
        found: Mapping[str, Any] = json.loads(self.buildah("inspect", "--type", "image", _IMAGE))["Docker"]["config"]
        return found

    def size(self, name: str) -> str:
        return str(json.loads(self.buildah("images", "--json", name))[0]["size"])

    def tried(self) -> dict[str, str]:
        """The first line that each command prints."""
        return {shown: self.run(*words).partition("\n")[0] for shown, words in TRIED.items()}


@contextmanager
def built() -> Iterator[Built]:
    """The image of the container file, on a base made for it; all is removed at the end.

    Raises CalledProcessError with what was said.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-container-") as place:
        yield _build(Path(place))


def _build(folder: Path) -> Built:
    made = Built(folder)
    base, wheels = folder / "base", folder / "wheels"
    moment = time.monotonic()
    # In a namespace of its own, so that its mounts end with it.
    packages = f"--include={','.join(INCLUDED)}"
    _run("unshare", "--mount", "debootstrap", "--variant=minbase", packages, SUITE, str(base))
    (base / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    empty = made.buildah("from", "scratch").strip()
    made.buildah("add", "--quiet", empty, str(base), "/")
    made.buildah("commit", "--quiet", "--format", "docker", "--rm", empty, _BASE)
    made.seconds["the base"] = time.monotonic() - moment

    python = next((base / "usr/lib").glob("python3.[0-9]*")).name.removeprefix("python")
    for lock in ("requirements.lock", "requirements-build.lock"):
        fetch = ("download", "-qq", "--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version", python)
        _run(sys.executable, "-m", "pip", *fetch, "-r", str(ROOT / lock), "-d", str(wheels))

    moment = time.monotonic()
    given = ("--pull-never", "--build-arg", f"PYTHON={_BASE}", "--volume", f"{wheels}:/wheels:ro")
    file = ROOT / "deploy" / "Containerfile"
    made.buildah("bud", "--quiet", "--format", "docker", *given, "-t", _IMAGE, "-f", str(file), str(ROOT))
    made.seconds["the image"] = time.monotonic() - moment
    (folder / "penstock.toml").write_text(_CONFIG)
    made.container = made.buildah("from", "--pull-never", _IMAGE).strip()
    return made


def record(made: Built) -> str:
    """What was built and what it does, for docs/deployment.md."""
    commit = _run("git", "-c", "safe.directory=*", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()
    tool = " ".join(_run("buildah", "--version").split()[:3])
    system, python = made.run("cat", "/etc/debian_version"), made.run("python", "--version")
    took = ", ".join(f"{what} in {seconds:.0f} s" for what, seconds in made.seconds.items())
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, commit {commit}, {tool}, BUILDAH_ISOLATION=chroot: {took}",
        f"base: Debian {system} by debootstrap, {python}, {made.size(_BASE)}",
        f"image: {made.size(_IMAGE)}, user {made.config['User']}, runs {' '.join(made.config['Cmd'])}",
    ]
    for shown, said in made.tried().items():
        lines += [f"$ {shown}", said]
    return "\n".join(lines) + "\n"


def _run(*words: str, **environment: str) -> str:
    """What it prints. Where it fails, what it said is part of the error."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    surroundings = {**os.environ, "PATH": path, **environment}
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False, env=surroundings)
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, words)
        error.add_note((done.stdout + done.stderr)[-4000:])
        raise error
    return done.stdout


if __name__ == "__main__":
    if why := lacking():
        sys.exit(why)
    with built() as done:
        sys.stdout.write(record(done))
