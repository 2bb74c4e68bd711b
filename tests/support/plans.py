"""How a database carries out a statement, by its own word."""

from __future__ import annotations

import json
import re
from typing import Any


class Plan:
    """PostgreSQL's plan with what really happened, or SQLite's words."""

    def __init__(self, answer: Any, *, sqlite: bool) -> None:
        self.sqlite = sqlite
        self.words: list[str] = []
        self.nodes: list[dict[str, Any]] = []
        if sqlite:
            self.words = [row[-1] for row in answer]
        else:
            found = answer[0][0]
            self._walk((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])

    def _walk(self, node: dict[str, Any]) -> None:
        self.nodes.append(node)
        for child in node.get("Plans", ()):
            self._walk(child)

    def scans(self, table: str, aliases: str) -> list[str]:
        """How each visit of the table goes: the index's name, or 'scan'."""
        if self.sqlite:
            # 'SEARCH t USING INDEX invoice_due (...)'; WITHOUT ROWID tables say PRIMARY KEY.
            visits = [w for w in self.words if re.match(rf"(SCAN|SEARCH) ({aliases}|{table})\b", w)]
            found = [re.search(r"USING (?:COVERING )?(?:INDEX (\w+)|(PRIMARY KEY))", w) for w in visits]
            return [
                "scan" if w.startswith("SCAN") else (m and (m[1] or m[2])) or "scan"
                for w, m in zip(visits, found, strict=True)
            ]
        visits_of = [n for n in self.nodes if n.get("Relation Name") == table and "Scan" in n["Node Type"]]
        bitmaps = [n for n in self.nodes if n["Node Type"] == "Bitmap Index Scan"]
        by_bitmap = [n["Index Name"] for n in bitmaps if n["Index Name"].startswith(table)]
        return [n.get("Index Name", "scan") for n in visits_of if n["Node Type"] != "Bitmap Heap Scan"] + by_bitmap

    def visited(self, table: str) -> int:
        """How many rows of the table were looked at, thrown away or not (PostgreSQL)."""
        total = 0
        for node in self.nodes:
            if node.get("Relation Name") == table and "Scan" in node["Node Type"]:
                thrown = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                total += (node["Actual Rows"] + thrown) * node["Actual Loops"]
        return round(total)

    def compared(self) -> int:
        """How many pairs of rows joins put together to no avail (PostgreSQL)."""
        return round(sum(n.get("Rows Removed by Join Filter", 0) * n["Actual Loops"] for n in self.nodes))

    def sorted_rows(self) -> int:
        """The most rows that any sort was given (PostgreSQL)."""
        sorts = [n for n in self.nodes if "Sort" in n["Node Type"]]
        return max([round(n["Plans"][0]["Actual Rows"] * n["Plans"][0]["Actual Loops"]) for n in sorts], default=0)
