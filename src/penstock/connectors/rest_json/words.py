"""Names that a table or a column of one's own cannot have: SQLite or PostgreSQL takes them for something else."""

from __future__ import annotations

_WORDS = """
    add all alter analyse analyze and any array as asc asymmetric authorization autoincrement between binary both
    case cast check collate collation column commit concurrently constraint create cross current_catalog
    current_date current_role current_schema current_time current_timestamp current_user default deferrable delete
    desc distinct do drop else end escape except exists false fetch for foreign freeze from full grant group
    having ilike in index initially inner insert intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not nothing notnull null offset on only or order outer overlaps placing
    primary raise references returning right select session_user set similar some symmetric system_user table
    tablesample then to trailing transaction true union unique update user using values variadic verbose when
    where window with
    cmax cmin ctid tableoid xmax xmin
"""
SQL_WORDS = frozenset(_WORDS.split())
"""Words of SQL, and the columns that every table of PostgreSQL has."""
