"""A price list in a file: what is read, what is refused, and that a rewrite changes nothing else and loses nothing."""

from __future__ import annotations

import asyncio
import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.csv_catalog.client import BadCatalogue, CatalogueMoved, CsvCatalogue
from penstock.connectors.csv_catalog.rows import Form
from penstock.connectors.prices import FREE, Item, Refusal, Variant, VariantPrice
from penstock.model import tenure
from penstock.model.errors import Fatal, InDoubt, Transient, UsageError
from penstock.worker.executor import InlineExecutor, ThreadExecutor

HEADER = "sku,product_id,variant_id,title,vendor,tags,price,compare_at_price,cost,reference_price,currency,shelf\n"
ROWS = (
    'A-1,P1,11,"Ring, plain",Acme,sale|gold,19.99,24.99,8.5,21,EUR,"left, top"\n'
    "A-2,P1,12,Ring,Acme,,20.00,,,,EUR,\n"
    'B-1,P2,21,"Two\nlines",Best,"a;b ; c",5,,,,EUR,x\n'
)


def catalogue(folder: Path, text: str = HEADER + ROWS, **options: str) -> tuple[CsvCatalogue, Path]:
    path = folder / "prices.csv"
    path.write_bytes(text.encode())
    return CsvCatalogue(path, InlineExecutor().run, **options), path


def problems(folder: Path, text: str, **options: str) -> list[str]:
    prices, path = catalogue(folder, text, **options)
    with pytest.raises(BadCatalogue) as caught:
        asyncio.run(prices.catalogue_page(None, 100))
    assert str(caught.value) == f"{path}: " + "; ".join(caught.value.problems)
    return list(caught.value.problems)


def test_the_catalogue_is_read_in_pages(tmp_path):
    prices, _ = catalogue(tmp_path)

    async def read() -> list[Item]:
        assert (await prices.shop()).currency == "EUR"
        first = await prices.catalogue_page(None, 2)
        second = await prices.catalogue_page(first.next, 2)
        assert (len(first.items), second.next, second.cost) == (2, None, FREE)
        return [*first.items, *second.items]

    assert asyncio.run(read()) == [
        Item("11", "P1", "A-1", "Ring, plain", "Acme", ("sale", "gold"), "active", "19.99", "24.99", "8.5", "21"),
        Item("12", "P1", "A-2", "Ring", "Acme", (), "active", "20.00"),
        Item("21", "P2", "B-1", "Two\nlines", "Best", ("a", "b", "c"), "active", "5"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffsku,price\r\nA,1.50\r\nB,2\r\n",
        "SKU; Price \nA;1.50\nB;2",
        '"price","sku"\n"1.50","A"\n\n2,B\n\n',
    ],
)
def test_marks_delimiters_quotes_and_line_ends_of_every_kind(tmp_path, text):
    prices, path = catalogue(tmp_path, text, currency="USD")

    async def read_and_write() -> None:
        page = await prices.catalogue_page(None, 100)
        assert [(item.sku, item.variant_id, item.product_id, item.price) for item in page.items] == [
            ("A", "A", "A", "1.50"),
            ("B", "B", "B", "2"),
        ]
        assert (await prices.shop()).currency == "USD"
        assert await prices.update("B", [VariantPrice("B", "9.99")]) == ({"B": None}, FREE)

    asyncio.run(read_and_write())
    index = text.rindex("2")
    assert path.read_bytes().decode() == text[:index] + "9.99" + text[index + 1 :]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["line 1: the column sku, price is missing; there are: none"]),
        ("sku,cost\nA,1\n", ["line 1: the column price is missing; there are: sku, cost"]),
        ("sku,price,Price\nA,1,2\n", ["line 1: the column price is there twice"]),
        ("sku,price\nA,1\nB,2,3\n", ["line 3: 3 columns, and the header has 2"]),
        ("sku,price\nA,1\nB,2\nA,3\n", ["line 4: a second row for SKU 'A'; the first is line 2"]),
        ('sku,price\n"A\nB",1\nC,2\nC,3\n', ["line 5: a second row for SKU 'C'; the first is line 4"]),
        (
            "sku,price,variant_id\nA,1,7\nB,2,7\n",
            ["line 3: a second row for variant '7'; the first is line 2"],
        ),
        ("sku,price\n,1\n", ["line 2: it has no SKU"]),
        (
            "sku,price,cost\nA,-1,\nB,1e3,\nC,NaN,\nD,,\nE,1,x\n",
            [
                "line 2: price '-1' is not a price; write it like 19.99",
                "line 3: price '1e3' is not a price; write it like 19.99",
                "line 4: price 'NaN' is not a price; write it like 19.99",
                "line 5: price '' is not a price; write it like 19.99",
                "line 6: cost 'x' is not a price; write it like 19.99",
            ],
        ),
        ('sku,price\nA,"1"2\n', ["line 2: ',' expected after '\"'"]),
        ('sku,price\nA,"1\n', ["line 2: unexpected end of data"]),
        ("sku;price\nA;19,99\n", ["line 2: price '19,99' is not a price; write it like 19.99"]),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, said):
    assert problems(tmp_path, text, currency="EUR") == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sku,price\nA,1\n", ["no row has a currency, and the settings name none"]),
        ("sku,price,currency\nA,1,EUR\nB,2,USD\n", ["line 3: USD, and line 2 has EUR; a price list has one"]),
        ("sku,price,currency\nA,1,EUR\nB,2,\n", ["line 3: it has no currency"]),
        ("sku,price,currency\nA,1,euro\n", ["line 2: 'euro' is not a currency; write it like EUR"]),
    ],
)
def test_currencies_are_never_mixed(tmp_path, text, said):
    assert problems(tmp_path, text)[: len(said)] == said


def test_the_settings_name_the_currency(tmp_path):
    assert problems(tmp_path, "sku,price,currency\nA,1,EUR\n", currency="USD") == [
        "line 2: EUR, and the settings has USD; a price list has one"
    ]


def test_of_many_problems_the_first_are_told(tmp_path):
    said = problems(tmp_path, "sku,price\n" + "A,x\n" * 1_000, currency="EUR")
    assert (len(said), said[-1]) == (21, "and 1,979 more")


def test_what_is_no_text_is_said(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_bytes(b"sku,price\nA,1\n\xff\xfe,2\n")
    with pytest.raises(BadCatalogue, match="line 3: it is not UTF-8"):
        asyncio.run(CsvCatalogue(path, InlineExecutor().run, currency="EUR").shop())


def test_variants_and_updates(tmp_path):
    prices, path = catalogue(tmp_path)

    async def test() -> None:
        assert await prices.variants(["11", "21", "99"]) == (
            {"11": Variant("11", "19.99", "24.99"), "21": Variant("21", "5")},
            FREE,
        )
        changes = [VariantPrice("12", "18.00", "20.00"), VariantPrice("21", "1"), VariantPrice("99", "1")]
        changes += [VariantPrice("11", price) for price in ("-1",)]
        outcome, cost = await prices.update("P1", changes)
        assert cost == FREE
        assert outcome == {
            "12": None,
            "21": Refusal("MUST_BE_FOR_THIS_PRODUCT", "'21' is of another product"),
            "99": Refusal("PRODUCT_VARIANT_DOES_NOT_EXIST", "the price list has no row for '99'"),
            "11": Refusal("INVALID_PRICE", "'-1' is not a price; nothing was written"),
        }
        assert (await prices.variants(["12"]))[0] == {"12": Variant("12", "18.00", "20.00")}
        with pytest.raises(UsageError, match="1 to 10,000"):
            await prices.catalogue_page(None, 0)

    asyncio.run(test())
    changed = ROWS.replace("A-2,P1,12,Ring,Acme,,20.00,,", "A-2,P1,12,Ring,Acme,,18.00,20.00,")
    assert path.read_text() == HEADER + changed


def test_a_price_that_somebody_else_has_set_meanwhile_stays(tmp_path):
    prices, path = catalogue(tmp_path)

    async def test() -> None:
        was = (await prices.variants(["11", "12"]))[0]
        path.write_text(HEADER + ROWS.replace("19.99", "77.00"))
        changes = [VariantPrice("11", "1.00", "24.99", was["11"]), VariantPrice("12", "1.00", None, was["12"])]
        with pytest.raises(InDoubt, match="somebody else has set the price of '11'"):
            await prices.update("P1", changes)
        assert await prices.update("P1", [VariantPrice("12", "2.00", None, Variant("12", "1"))]) == ({"12": None}, FREE)

    asyncio.run(test())
    assert path.read_text() == HEADER + ROWS.replace("19.99", "77.00").replace("20.00", "2.00")


def test_a_price_to_compare_with_needs_its_column(tmp_path):
    prices, path = catalogue(tmp_path, "sku,price,currency\nA,1,EUR\n")
    outcome, _ = asyncio.run(prices.update("A", [VariantPrice("A", "2", "3")]))
    assert outcome == {"A": Refusal("NO_COLUMN", "the price list has no column compare_at_price")}
    assert asyncio.run(prices.update("A", [VariantPrice("A", "2")]))[0] == {"A": None}
    assert path.read_text() == "sku,price,currency\nA,2,EUR\n"


CELLS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=8)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(",;"),
    st.sampled_from(["\n", "\r\n", ""]),
    st.lists(st.tuples(CELLS, st.booleans()), min_size=3, max_size=5),
)
def test_another_price_is_all_that_changes_in_a_row(delimiter, end, written):
    form = Form.read(delimiter.join(["sku", "price", "compare_at_price", "a", "b"][: len(written)]) + "\n")
    raw = [
        f'"{cell.replace(chr(34), chr(34) * 2)}"' if quoted or re.search(f'^"|[{delimiter}\r\n]', cell) else cell
        for cell, quoted in written
    ]
    row = delimiter.join(raw) + end
    replaced = form.replace(row, {"price": "7.50", "compare_at_price": "9"})
    wanted = [
        f'"{price}"' if old.startswith('"') else price for old, price in zip(raw[1:3], ("7.50", "9"), strict=True)
    ]
    assert replaced == delimiter.join([raw[0], *wanted, *raw[3:]]) + end
    assert form.parse(replaced) == [written[0][0], "7.50", "9", *(cell for cell, _ in written[3:])]
    assert form.replace(row, {}) == row


def test_rows_that_come_or_go_between_pages_are_noticed_and_prices_are_not(tmp_path):
    prices, path = catalogue(tmp_path)

    async def test() -> None:
        first = await prices.catalogue_page(None, 1)
        await prices.update("P1", [VariantPrice("11", "1.00")])
        second = await prices.catalogue_page(first.next, 1)
        assert [item.sku for item in second.items] == ["A-2"]
        path.write_text(path.read_text() + "C-1,P3,31,,,,1,,,,EUR,\n")
        with pytest.raises(CatalogueMoved, match="begin again"):
            await prices.catalogue_page(second.next, 1)

    asyncio.run(test())


def test_a_file_that_is_not_there_or_not_ours(tmp_path):
    path = tmp_path / "prices.csv"
    prices = CsvCatalogue(path, InlineExecutor().run)
    with pytest.raises(Transient, match="No such file"):
        asyncio.run(prices.variants(["1"]))
    path.mkdir()
    with pytest.raises(Transient, match="Is a directory"):
        asyncio.run(prices.update("1", [VariantPrice("1", "1")]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    prices, path = catalogue(tmp_path)
    path.chmod(0)
    with pytest.raises(Fatal, match="Permission denied"):
        asyncio.run(prices.shop())


def test_a_link_stays_a_link_and_a_mode_stays(tmp_path):
    prices, path = catalogue(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    real = path.rename(tmp_path / "elsewhere" / "real.csv")
    real.chmod(0o640)
    path.symlink_to(real)
    asyncio.run(prices.update("P1", [VariantPrice("11", "1.00")]))
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert "1.00" in real.read_text()
    assert sorted(one.name for one in real.parent.iterdir()) == [".real.csv.lock", "real.csv"]


def test_many_updates_are_one_rewrite(tmp_path):
    rows = "".join(f"S{number},P{number // 4},10.00,EUR,row {number}\n" for number in range(100_000))
    path = tmp_path / "prices.csv"
    path.write_text("sku,product_id,price,currency,note\n" + rows)
    threads = ThreadExecutor(2)
    calls: list[str] = []

    async def run(work, *args):
        calls.append(work.__name__)
        return await threads.run(work, *args)

    async def test() -> None:
        prices = CsvCatalogue(path, run)
        await prices.shop()
        updates = [
            prices.update(f"P{product}", [VariantPrice(f"S{4 * product + one}", "12.50") for one in range(4)])
            for product in range(500)
        ]
        done = await asyncio.gather(*updates)
        assert all(set(outcome.values()) == {None} for outcome, _ in done)
        await prices.close()

    asyncio.run(test())
    threads.close()
    assert calls == ["shop", "write"]
    changed = path.read_text()
    assert changed.count(",12.50,EUR") == 2_000
    assert changed == "sku,product_id,price,currency,note\n" + rows.replace("10.00", "12.50", 2_000)


WRITER = """
import asyncio, sys
from pathlib import Path
from penstock.connectors.csv_catalog.client import CsvCatalogue
from penstock.connectors.prices import VariantPrice
from penstock.worker.executor import InlineExecutor

async def main(path, first, rounds):
    prices = CsvCatalogue(path, InlineExecutor().run)
    for number in range(rounds):
        sku = f"S{first + number % 100}"
        outcome, _ = await prices.update(sku, [VariantPrice(sku, f"{number + 1}.00")])
        assert outcome == {sku: None}, outcome
        print(number, flush=True)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
"""


def writer(path: Path, first: int, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(rounds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def two_hundred_rows(folder: Path) -> Path:
    path = folder / "prices.csv"
    path.write_text("sku,price,currency\n" + "".join(f"S{number},0.50,EUR\n" for number in range(200)))
    return path


def test_two_processes_do_not_lose_each_others_prices(tmp_path):
    path = two_hundred_rows(tmp_path)
    for process in [writer(path, 0, 100), writer(path, 100, 100)]:
        process.communicate(timeout=60)
        assert process.returncode == 0
    rows = list(csv.reader(path.read_text().splitlines()))[1:]
    assert rows == [[f"S{number}", f"{number % 100 + 1}.00", "EUR"] for number in range(200)]


def test_whoever_is_killed_leaves_a_whole_file_with_what_was_told(tmp_path):
    path = two_hundred_rows(tmp_path)
    for first in (0, 100):
        process = writer(path, first, 1_000_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        told = [line for line in process.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
        rows = {row[0]: row[1] for row in list(csv.reader(path.read_text().splitlines()))[1:]}
        assert len(rows) == 200
        latest = int(told[-1])
        assert float(rows[f"S{first + latest % 100}"]) >= latest + 1, "what was told is there"


def test_a_step_that_lost_its_unit_writes_nothing(tmp_path):
    prices, path = catalogue(tmp_path)
    lost = False

    def holder() -> None:
        if lost:
            raise asyncio.CancelledError

    async def test() -> None:
        nonlocal lost
        tenure.HOLDER.set(holder)
        update = asyncio.create_task(prices.update("P1", [VariantPrice("11", "1.00")]))
        await asyncio.sleep(0)  # it waits to be written
        lost = True
        with pytest.raises(asyncio.CancelledError):
            await update
        with pytest.raises(asyncio.CancelledError):
            await prices.update("P1", [VariantPrice("11", "1.00")])
        lost = False
        assert (await prices.update("P1", [VariantPrice("12", "3.00")]))[0] == {"12": None}

    asyncio.run(test())
    assert path.read_text() == HEADER + ROWS.replace("20.00", "3.00")


def test_a_failure_is_told_to_everybody_who_waits(tmp_path):
    prices, path = catalogue(tmp_path)

    async def test() -> None:
        await prices.shop()
        path.unlink()
        updates = [prices.update("P1", [VariantPrice(one, "1.00")]) for one in ("11", "12")]
        first, second = await asyncio.gather(*updates, return_exceptions=True)
        assert isinstance(first, Transient)
        assert isinstance(second, Transient)
        assert first is not second

    asyncio.run(test())


def test_who_writes_into_the_file_while_it_is_rewritten_is_noticed(tmp_path, monkeypatch):
    prices, path = catalogue(tmp_path)
    os.utime(path, (1, 1))  # the clock of files is coarse: two changes in four milliseconds look like one
    asyncio.run(prices.shop())
    replace = Form.replace

    def meddling(form: Form, text: str, cells: dict[str, str]) -> str:
        path.write_text(HEADER + ROWS.replace("19.99", "88.88"))  # into the same file, at the same length
        return replace(form, text, cells)

    with monkeypatch.context() as between:
        between.setattr(Form, "replace", meddling)
        with pytest.raises(Transient, match="somebody else wrote to it; nothing was changed"):
            asyncio.run(prices.update("P1", [VariantPrice("12", "1.00")]))
    assert path.read_text() == HEADER + ROWS.replace("19.99", "88.88")
    assert asyncio.run(prices.update("P1", [VariantPrice("12", "1.00")]))[0] == {"12": None}
    assert path.read_text() == HEADER + ROWS.replace("19.99", "88.88").replace("20.00", "1.00")
