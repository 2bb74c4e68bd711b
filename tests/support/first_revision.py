"""`python -m tests.support.first_revision`: the text of the kernel's first revision, made from the declarations.

Of use until the first release alone: from then on that revision stays as it is, and a change is a revision of its own.
"""

from __future__ import annotations

import sys

from penstock.ledger.schema.expand import create
from penstock.ledger.schema.tables import kernel_tables

HEAD = '''"""The kernel's tables as they were first released.

Text, and not the declarations of `tables.py`: those go on, and this revision must not change with them.
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None

'''
FOOT = '''

def upgrade() -> None:
    """Make them."""
    bind = op.get_bind()
    text = SQLITE if bind.dialect.name == "sqlite" else POSTGRESQL
    for statement in text.strip().removesuffix(";").split(";\\n"):
        bind.exec_driver_sql(statement)
'''


def block(name: str, dialect: str) -> str:
    statements = [sql for table in kernel_tables(dialect) for sql in create(table, dialect)]
    lines = (";\n\n".join(statements) + ";").replace("\t", "    ").splitlines()
    return "\n".join([f'{name} = r"""', *(line.rstrip() for line in lines), '"""', ""])


def text() -> str:
    return HEAD + block("SQLITE", "sqlite") + "\n" + block("POSTGRESQL", "postgresql") + FOOT


if __name__ == "__main__":
    sys.stdout.write(text())
