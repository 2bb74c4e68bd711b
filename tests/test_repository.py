"""What the files of the repository must and must not contain."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LONGEST_MODULE = 500
LOCKS = ["requirements.lock", "requirements-build.lock", "requirements-dev.lock"]

# Written in pieces, so that this file does not contain what it looks for.
INDEX_ADDRESS = re.compile("/" + r"simple(?=[/\s\"'<>)\]]|$)" + "|" + "--(extra-)?" + r"index-url\b", re.MULTILINE)


def repository_files() -> list[Path]:
    """Tracked files, and those that would be if they were added."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git working tree")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / name for name in sorted(set(listed.split("\0"))) if name and (ROOT / name).is_file()]


def machine_path() -> re.Pattern[str]:
    """Absolute paths into the clone, its parent or the home directory, where those tell anything."""
    common = {
        Path("/"),
        Path("/home"),
        Path("/opt"),
        Path("/srv"),
        Path("/usr/src"),
        Path(tempfile.gettempdir()),
    }
    telling = [path for path in (ROOT, ROOT.parent, Path.home()) if path not in common]
    paths = "|".join(re.escape(str(path)) for path in telling)
    return re.compile(rf"(?<![\w.}}-])({paths})(?=/|[\"'\s]|$)", re.MULTILINE)


def offences(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in repository_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match.group()}")
    return found


def test_no_file_names_a_package_index():
    assert offences(INDEX_ADDRESS) == []


def test_no_file_names_a_path_of_this_machine():
    assert offences(machine_path()) == []


@pytest.mark.parametrize(
    "text", ["https://host.test/" + "simple", "https://host.test/" + "simple/x", "--extra-" + "index-url=x"]
)
def test_an_index_address_is_recognised(text):
    assert INDEX_ADDRESS.search(text)


def test_no_module_is_too_long():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE} == {}


def test_only_the_store_and_the_schema_know_which_database_it_is():
    """What differs between the databases is a method of their two sides: see `Database.sql`."""
    source = ROOT / "src" / "penstock"
    inside = (source / "ledger" / "store", source / "ledger" / "schema")
    others = [path for path in source.rglob("*.py") if not any(path.is_relative_to(place) for place in inside)]
    asking = [str(path.relative_to(ROOT)) for path in others if re.search(r"\bdialect\b", path.read_text())]
    assert asking == []


def test_commands_print_through_what_makes_text_inert():
    """`click.echo` and `print` would pass control characters of somebody else's text on to the terminal."""
    cli = (ROOT / "src" / "penstock" / "cli").glob("*.py")
    said = [path.name for path in cli if re.search(r"\b(click\.echo|print)\(", path.read_text())]
    assert said == ["terminal.py"]


def locked(name: str) -> dict[str, tuple[Requirement, int]]:
    """The requirements of a lock file with their number of hashes, by name."""
    joined = (ROOT / name).read_text().replace("\\\n", " ")
    entries = [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found: dict[str, tuple[Requirement, int]] = {}
    for entry in entries:
        written, *hashes = re.split(r"\s+--hash=sha256:", entry.strip())
        requirement = Requirement(written)
        found[canonicalize_name(requirement.name)] = (requirement, len(hashes))
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_requirement_is_pinned_and_hashed(lock):
    requirements = locked(lock)
    assert requirements
    for requirement, hashes in requirements.values():
        assert [specifier.operator for specifier in requirement.specifier] == ["=="], requirement
        assert hashes > 0, requirement


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_files_agree(lock):
    development = locked("requirements-dev.lock")
    for name, (requirement, _) in locked(lock).items():
        assert development[name][0].specifier == requirement.specifier


@pytest.mark.parametrize(("lock", "extras"), [("requirements.lock", []), ("requirements-dev.lock", ["dev"])])
def test_lock_files_satisfy_the_project(lock, extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = locked(lock)
    wanted = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    for line in wanted:
        requirement = Requirement(line)
        pinned, _ = requirements[canonicalize_name(requirement.name)]
        (specifier,) = pinned.specifier
        assert requirement.specifier.contains(specifier.version), f"run `make lock`: {line}"
