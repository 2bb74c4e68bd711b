"""The figures of each part, kept from run to run, so that one part can be measured anew without losing the others.

They lie beside the document that is made of them. A part's figures come from one run, and say when it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.results import Results

Kept = dict[str, dict[str, Any]]
_NAMES = {f"{c.database}: {c.name}": c for c in CONTENDERS}


def merged(file: Path, found: Results, parts: Mapping[str, str]) -> tuple[Results, dict[str, str]]:
    """What is kept with what was found in its place, written again; and when each part was measured, as `parts` say."""
    kept: Kept = json.loads(file.read_text()) if file.exists() else {}
    for part, when in parts.items():
        if lines := _plain(getattr(found, part)):
            kept[part] = {"when": when, "lines": lines}
    file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    results = Results(failures=found.failures)
    for name, figures in kept.items():
        getattr(results, name).update(_read(name, figures["lines"]))
    return results, {name: part["when"] for name, part in sorted(kept.items())}


def _plain(lines: Mapping[Any, Any]) -> dict[str, Any]:
    return {key if isinstance(key, str) else f"{key.database}: {key.name}": line for key, line in lines.items()}


def _read(part: str, lines: Mapping[str, Any]) -> dict[Any, Any]:
    if part != "rates":
        return dict(lines)
    return {_NAMES[name]: line for name, line in lines.items() if name in _NAMES}
