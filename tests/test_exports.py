import penstock


def test_every_exported_name_exists_and_is_sorted():
    assert penstock.__all__ == sorted(penstock.__all__)
    missing = [name for name in penstock.__all__ if not hasattr(penstock, name)]
    assert missing == []


def test_importing_the_package_loads_no_database_and_no_web():
    import subprocess
    import sys

    heavy = "sqlalchemy", "psycopg", "pysqlite3", "aiohttp", "starlette", "uvicorn", "typer", "rich"
    code = f"import sys, penstock; print([n for n in {heavy!r} if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
