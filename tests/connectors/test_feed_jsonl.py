"""A folder of JSON lines: read by tokens, while others write, shorten and remove files."""

from __future__ import annotations

import asyncio
import json
import os
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.feed_jsonl.client import JsonLines
from penstock.connectors.feed_jsonl.parameters import check
from penstock.connectors.searches import OFFER_COLUMNS, Bad, Batch, Client, Item, Wanted
from penstock.model.errors import Fatal, Rejected, Transient
from penstock.worker.executor import InlineExecutor

AT = "2026-11-15T10:00:00Z"
RUN = InlineExecutor().run


def line(number: int | str, **more: Any) -> str:
    return json.dumps({"id": str(number), "updated_at": AT, "title": f"Offer {number}", **more}) + "\n"


def ask(client: Client, token: str | None = None, since: datetime | None = None, **parameters: Any) -> Batch:
    return asyncio.run(client.page(parameters, Wanted(token=token, since=since)))


def walk(client: Client, **parameters: Any) -> Iterator[Batch]:
    token = None
    while True:
        batch = ask(client, token, **parameters)
        yield batch
        if batch.last:
            return
        token = batch.after


def ids(*batches: Batch) -> list[str | None]:
    return [record.id for batch in batches for record in batch.records]


def feed(folder: Path, files: dict[str, str], page_size: int = 1_000) -> JsonLines:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(text.encode())
    return JsonLines(folder, RUN, page_size)


def test_files_are_read_in_the_order_of_their_names(tmp_path):
    client = feed(tmp_path, {"b.jsonl": line(3) + line(4), "a.jsonl": line(1) + "\n" + line(2), "c.txt": line(5)})
    (batch,) = walk(client)
    assert ids(batch) == ["1", "2", "3", "4"]
    assert (batch.last, batch.cut, batch.total) == (True, False, None)


def test_an_offer_is_read_field_by_field(tmp_path):
    values: dict[str, Any] = {name: f" {name} " for name in OFFER_COLUMNS}
    values |= {"salary_min": 24_000, "salary_max": "30.000 €", "published_at": "2026-11-14T10:00:00+01:00"}
    client = feed(tmp_path, {"a.jsonl": line(7, **values, more={"a": [1]})})
    (item,) = ask(client).records
    assert isinstance(item, Item)
    assert (item.id, item.at) == ("7", datetime(2026, 11, 15, 10, tzinfo=UTC))
    read = dict(zip(client.columns, item.values, strict=True))
    assert read.pop("published_at") == datetime(2026, 11, 14, 9, tzinfo=UTC)
    assert (read.pop("salary_min"), read.pop("salary_max")) == (24_000.0, 30_000.0)
    assert read == {name: name for name in read}
    assert json.loads(item.payload)["more"] == {"a": [1]}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 7))
def test_pages_of_any_size_give_everything_once(tmp_path_factory, sizes, page_size):
    folder = tmp_path_factory.mktemp("feed")
    files = {f"{n}.jsonl": "".join(line(f"{n}-{i}") for i in range(size)) for n, size in enumerate(sizes)}
    batches = list(walk(feed(folder, files, page_size)))
    assert ids(*batches) == [f"{n}-{i}" for n, size in enumerate(sizes) for i in range(size)]
    assert all(len(batch.records) <= page_size for batch in batches)


def test_the_same_id_comes_as_often_as_it_is_written(tmp_path):
    client = feed(tmp_path, {"a.jsonl": line(1) + line(2) + line(1, title="Later")})
    assert ids(ask(client)) == ["1", "2", "1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{nothing", "the line is not JSON: "),
        ("[1]", "it is not an object"),
        ("null", "it is not an object"),
        (json.dumps({"updated_at": AT, "title": "x"}), "it has no id"),
        (json.dumps({"id": "1", "title": "x"}), "it has no date"),
        (json.dumps({"id": "1", "title": "x", "updated_at": "soon"}), "its date cannot be read: 'soon'"),
        (json.dumps({"id": "1", "updated_at": AT}), "it has no title"),
        ('{"id":"1"}' + "x" * (2 << 20), "the line is longer than 1,048,576 bytes"),
        ("[" * 100_000, "the line is not JSON: "),
    ],
)
def test_a_bad_line_says_why_and_stops_nothing(tmp_path, text, reason):
    client = feed(tmp_path, {"a.jsonl": line(1) + text + "\n" + line(2)})
    first, bad, last = ask(client).records
    assert (first.id, last.id) == ("1", "2")
    assert isinstance(bad, Bad)
    assert bad.reason.startswith(reason)
    assert len(bad.payload) <= 2_000
    json.dumps(bad.payload).encode()


def test_broken_characters_are_marked(tmp_path):
    client = feed(tmp_path, {})
    text = rb'{"id":"1","updated_at":"%s","title":"a\u0000\ud800"}' % AT.encode()
    (tmp_path / "a.jsonl").write_bytes(text + b"\n" + text.replace(b'"a', b'"\xff') + b"\n")
    first, second = ask(client).records
    assert isinstance(first, Item)
    assert isinstance(second, Item)
    assert (first.values[0], second.values[0]) == ("a\ufffd\ufffd", "\ufffd\ufffd\ufffd")
    (first.payload + second.payload).encode()


def test_a_line_that_is_being_written_is_left_for_the_next_time(tmp_path):
    client = feed(tmp_path, {"a.jsonl": line(1) + line(2)[:20]})
    first = ask(client)
    assert (ids(first), first.last) == (["1"], True)
    again = ask(client, first.after)
    assert (ids(again), again.last, again.after) == ([], True, first.after)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(line(2)[20:] + line(3))
    assert ids(ask(client, first.after)) == ["2", "3"]


def test_a_whole_offer_needs_no_end_of_line(tmp_path):
    client = feed(tmp_path, {"a.jsonl": line(1) + line(2).rstrip()})
    first = ask(client)
    assert ids(first) == ["1", "2"]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write("\n" + line(3))
    assert ids(ask(client, first.after)) == ["3"]


def test_a_longer_line_without_an_end_is_left(tmp_path):
    client = feed(tmp_path, {"a.jsonl": line(1) + '{"id":"2"' + " " * (3 << 20), "b.jsonl": line(3)})
    assert ids(ask(client)) == ["1", "3"]


def test_files_that_grow_between_pages_are_read_to_their_end(tmp_path):
    client = feed(tmp_path, {"a.jsonl": line(1) + line(2)}, page_size=1)
    first = ask(client)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(line(3))
    (tmp_path / "b.jsonl").write_text(line(4))
    second = ask(client, first.after)
    third = ask(client, second.after)
    assert ids(first, second, third, ask(client, third.after)) == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("change", "follows"),
    [
        (lambda path: path.write_text(line(9)), ["9", "3"]),  # shorter
        (lambda path: path.write_text("".join(line(n, title="Another one") for n in range(20, 23))), ["20", "21"]),
        (lambda path: path.unlink(), ["3"]),
        (lambda path: path.rename(path.with_suffix(".old")), ["3"]),
        (lambda path: (path.unlink(), path.mkdir()), ["3"]),
    ],
)
def test_a_file_that_became_another_is_begun_again_and_one_that_is_gone_is_passed(tmp_path, change, follows):
    client = feed(tmp_path, {"a.jsonl": line(1) + line(2), "b.jsonl": line(3)}, page_size=2)
    first = ask(client)
    assert ids(first) == ["1", "2"]
    change(tmp_path / "a.jsonl")
    assert ids(ask(client, first.after)) == follows


def test_words_must_be_in_the_title_or_the_description(tmp_path):
    offers = [line(1, title="Técnico PYTHON"), line(2, description="python, DATOS"), line(3), line(4, title=None)]
    client = feed(tmp_path, {"a.jsonl": "".join(offers)})
    assert ids(ask(client, q="Python")) == ["1", "2", "4"], "a bad one is told, whatever is searched for"
    assert ids(ask(client, q="datos python")) == ["2", "4"]
    assert ids(ask(client, q="TÉCNICO")) == ["1", "4"]


def test_a_pattern_chooses_files(tmp_path):
    client = feed(tmp_path, {"a.jsonl": line(1), "b.jsonl": line(2), "2026/c.jsonl": line(3), "d.ndjson": line(4)})
    assert ids(ask(client, files="b*.jsonl")) == ["2"]
    assert ids(ask(client, files="*/*.jsonl")) == ["3"]
    assert ids(ask(client, files="*.ndjson")) == ["4"]
    assert ids(ask(client, files="none*")) == []


def test_nothing_leads_out_of_the_folder(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    client = feed(inside, {"a.jsonl": line(1)})
    feed(outside, {"b.jsonl": line(2)})
    (inside / "link.jsonl").symlink_to(outside / "b.jsonl")
    (inside / "folder").symlink_to(outside)
    (inside / "circle.jsonl").symlink_to(inside / "circle.jsonl")
    (inside / "same.jsonl").symlink_to(inside / "a.jsonl")
    os.mkfifo(inside / "pipe.jsonl")
    assert ids(ask(client)) == ["1", "1"]
    assert ids(ask(client, files="folder/*.jsonl")) == []
    for pattern in ("../out/*.jsonl", "/etc/*", "a/../../out/*", "**/*.jsonl", "."):
        with pytest.raises(Rejected, match="'files' must be a pattern of files within the folder"):
            ask(client, files=pattern)


def test_parameters_that_mean_nothing_are_named():
    assert check({"q": "x", "files": "*.jsonl"}) == []
    assert [fault.split("'")[1] for fault in check({"Q": "x", "q": 7, "files": ""})] == ["Q", "q", "files"]


@pytest.mark.parametrize("token", ["", "x", "1:2:a.jsonl", "-1:0123456789abcdef:a", "9" * 30 + ":0123456789abcdef:a"])
def test_a_token_that_is_none_is_refused(tmp_path, token):
    with pytest.raises(Rejected, match="is not a place in a folder of offers"):
        ask(feed(tmp_path, {"a.jsonl": line(1)}), token)


def test_names_of_every_kind_can_be_gone_on_from(tmp_path):
    names = [b"a b.jsonl", b"a%20b.jsonl", "ñ😀.jsonl".encode(), b"\xff\xfe.jsonl", b"z:1:2.jsonl"]
    for number, name in enumerate(names):
        (tmp_path / os.fsdecode(name)).write_text(line(f"{number}a") + line(f"{number}b"))
    batches = list(walk(JsonLines(tmp_path, RUN, 1)))
    order = sorted(range(len(names)), key=lambda number: names[number])
    assert ids(*batches) == [f"{number}{letter}" for number in order for letter in "ab"]
    assert all(batch.after is not None and batch.after.isascii() for batch in batches)


def test_old_files_are_left_out_only_where_that_is_certain(tmp_path):
    client = feed(tmp_path, {"a.jsonl": line(1), "b.jsonl": line(2)})
    since = datetime(2026, 11, 15, tzinfo=UTC)
    for name, before in (("a.jsonl", timedelta(days=2, hours=1)), ("b.jsonl", timedelta(days=1, hours=23))):
        moment = (since - before).timestamp()
        os.utime(tmp_path / name, (moment, moment))
    assert ids(ask(client, since=since)) == ["2"]
    assert ids(ask(client)) == ["1", "2"]


def test_a_folder_that_is_not_there_is_waited_for(tmp_path):
    with pytest.raises(Transient, match="feed is not there"):
        ask(JsonLines(tmp_path / "feed", RUN))
    (tmp_path / "feed").write_text("")
    with pytest.raises(Fatal, match="feed is not a folder"):
        ask(JsonLines(tmp_path / "feed", RUN))
    assert (ask(feed(tmp_path / "empty", {"x": ""})).last, ask(feed(tmp_path / "empty", {})).after) == (True, None)


def test_a_large_file_takes_little_memory_and_no_line_more_than_its_share(tmp_path):
    text = line(1, description="x" * 5_000)
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(text for _ in range(6_000))
        file.write("y" * (30 << 20) + "\n" + line("last"))
    tracemalloc.start()
    count, last = 0, None
    for batch in walk(JsonLines(tmp_path, RUN, 5_000)):
        count += len(batch.records)
        last = batch.records[-1].id if batch.records else last
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (count, last) == (6_002, "last")
    assert peak < 40 << 20
