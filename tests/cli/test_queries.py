"""The command line of queries: what is typed, what is answered, and what is refused."""

from __future__ import annotations

import json

import pytest

CONFIG = """
ledger.url = "sqlite:///penstock.db"

[queries.feed_jsonl.files]
folder = "feed"

[queries.queries.python]
client = "files"
parameters.q = "python"

[queries.queries.java]
client = "files"
parameters.q = "java"
"""


@pytest.fixture
def queries(tmp_path, penstock):
    (tmp_path / "penstock.toml").write_text(CONFIG)
    (tmp_path / "feed").mkdir()
    assert penstock("db", "upgrade", cwd=tmp_path).code == 0
    return lambda *words: penstock("queries", *words, cwd=tmp_path)


def test_queries_are_shown_before_any_worker_has_made_them(queries):
    listed = json.loads(queries("list", "--json").out)
    assert [(row["query"], row["state"], row["waits"]) for row in listed["rows"]] == [
        ("python", None, "a worker will create it soon"),
        ("java", None, "a worker will create it soon"),
    ]
    assert listed["note"] == "nobody holds the run lock; no running worker serves queries; 'penstock up' starts one"
    shown = queries("show", "python")
    assert shown.code == 0, shown.err
    for said in ("last executed:", "was it successful: it has never run", "processed back to:", "running now:"):
        assert said in shown.out
    assert queries("runs", "--csv").out.startswith("run,query,status,stopped_by,started_at,took,counted")
    assert "no records were set aside" in (answer := queries("rejected")).out + answer.err


def test_a_pause_is_planned_asked_for_and_made(queries):
    dry = queries("pause", "--dry-run")
    assert dry.out.startswith("this would pause all queries\n")
    assert queries("pause", "--yes").code == 2, "without a reason"
    done = queries("pause", "python", "--for", "6h", "--reason", "too loud", "--by", "ada", "--yes")
    assert done.out.startswith("done: pause query python for 6h")
    resumed = queries("resume", "python", "--yes")
    assert resumed.out.startswith("done: let query python go on")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "pyton"), "no query is called 'pyton'; did you mean python?"),
        (("show", "files-"), "'files-' matches several queries: files-"),
        (("list", "--client", "filse"), "no client is called 'filse'; did you mean files?"),
        (("list", "--state", "RUNING"), "must be one of IDLE, RUNNING, SUCCESS, ERROR; did you mean RUNNING?"),
        (("run",), "name queries to run, or give 'all'; 'penstock queries list' lists them"),
        (("run", "python"), "the ledger does not have it yet; 'penstock up' creates it and runs it"),
        (("runs", "--since", "2999-01-01T00:00:00Z"), "lies in the future"),
        (("runs", "--since", "2026-02-01T00:00:00Z", "--until", "2026-01-01T00:00:00Z"), "is not after the beginning"),
        (("resume",), "the whole pipeline is not paused; there is nothing to resume"),
        (("seed", "python", "--from", "2026-13-01", "--reason", "x"), "must be a date, for example 2026-01-01"),
        (("seed", "python", "--again", "--reason", "x"), "is not in the ledger yet"),
        (("pause", "--for", "soon", "--reason", "x"), "must be a span, for example 6h"),
    ],
)
def test_bad_input_is_one_clear_message(queries, words, said):
    answer = queries(*words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
    assert "Traceback" not in answer.err
