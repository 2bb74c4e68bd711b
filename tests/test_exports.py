import subprocess
import sys

import pytest

import penstock
import penstock.testing

HEAVY = "sqlalchemy", "psycopg", "pysqlite3", "aiohttp", "starlette", "uvicorn", "click", "rich", "obstore"


@pytest.mark.parametrize("module", [penstock, penstock.testing])
def test_every_exported_name_exists_once(module):
    assert len(module.__all__) == len(set(module.__all__))
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []


def test_each_name_has_one_home():
    homes = [name for names in penstock._HOMES.values() for name in names.split()]
    assert sorted(homes) == sorted(penstock.__all__)


def test_what_a_user_needs_is_there():
    needed = (
        "App Lifecycle Data Machine State rest work done hold fault Edge Actor Unit GuardedUnit Column Flow Gate "
        "Io Outcome Act Look Wait Birth Move MoveSet Event Write Update Where Ledger Worker PartitionReader "
        "RawSink Settings says Secret reading operation Ask Page Role Parameters Row argument option column Each "
        "Together Births Wake Park Unpark GateChange Moves NOW job JobResult Schedule run PenstockError UsageError "
        "Transient Throttled Rejected Fatal InDoubt"
    )
    assert set(needed.split()) <= set(penstock.__all__)


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Machnie'"):
        penstock.Machnie  # type: ignore[attr-defined]  # noqa: B018


def loaded_by(code: str) -> str:
    code = f"import sys\n{code}\nprint([n for n in {HEAVY!r} if n in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_no_database_and_no_web():
    assert loaded_by("import penstock") == "[]"


def test_declaring_a_lifecycle_loads_no_database_and_no_web():
    declares = (
        "from penstock import Lifecycle, Data, Machine, State, rest, done, Edge, Actor, Unit, Settings, says, Secret,"
        " Url, reading, operation, Ask, Page, Role, Parameters, Row, argument, option, column, Moves, NOW, job,"
        " JobResult, Decider, replace, Act, Look, Wait, Outcome, OnError, RetryPolicy, Limit, GateLimits"
    )
    assert loaded_by(declares) == "[]"
