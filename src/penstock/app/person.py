"""Who uses this machine."""

from __future__ import annotations


def user() -> str:
    """The name of the system's user, for the history."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return "unknown"
