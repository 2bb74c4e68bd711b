"""A column and a table that a later kernel might add; on SQLite `event_log` and `gate` are built anew for it.

`SYNTHETIC_HALT` names a folder: the revision says there how far it has come, and stays at the point that is named by
the file `halt`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    _reach("begun")
    with op.batch_alter_table("gate", recreate="auto") as batch:
        batch.add_column(sa.Column("synthetic", sa.Text))
    sqlite = op.get_bind().dialect.name == "sqlite"
    recreate: Literal["always", "never"] = "always" if sqlite else "never"
    with op.batch_alter_table("event_log", recreate=recreate, table_kwargs={"sqlite_with_rowid": False}) as batch:
        batch.add_column(sa.Column("synthetic", sa.Text, nullable=False, server_default="none"))
    _reach("rebuilt")
    op.create_table("synthetic", sa.Column("id", sa.Integer, primary_key=True))
    op.execute("INSERT INTO synthetic (id) VALUES (1)")
    _reach("done")


def _reach(point: str) -> None:
    folder = os.environ.get("SYNTHETIC_HALT")
    if folder is None:
        return
    (Path(folder) / point).touch()
    while (Path(folder) / "halt").exists() and (Path(folder) / "halt").read_text() == point:
        time.sleep(0.02)
