"""Who uses this machine, and how the history names people."""

from __future__ import annotations

_MARK = " (token)"


def user() -> str:
    """The name of the system's user, for the history."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return "unknown"


def by_token(name: str) -> str:
    """How the history names who acts with a token: somebody at a machine may have the same name."""
    return f"{name}{_MARK}"


def bare(who: str) -> str:
    """Their name, with a token or without."""
    return who.removesuffix(_MARK)
