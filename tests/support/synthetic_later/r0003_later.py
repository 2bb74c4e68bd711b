"""Nothing but a number: a kernel that is two revisions ahead of the present one."""

from __future__ import annotations

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Change nothing."""
