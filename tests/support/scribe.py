"""`python -m tests.support.scribe URL FILE`: moves one invoice after the other along, until it is stopped.

FILE has the number of the last one whose commit was confirmed.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from tests.support.machines import INVOICE, invoice


def main(url: str, file: str) -> None:
    told, fresh = Path(file), Path(f"{file}.new")
    with Ledger.open(url, [INVOICE]) as ledger:
        for number in itertools.count(1):
            name = f"{number:07}"
            ledger.birth([invoice(name)], actor=Actor.API, who="scribe")
            ledger.move(Ref("invoice", f"acme/{name}"), "SENDING", actor=Actor.WORKER, who="scribe", reason="sending")
            fresh.write_text(str(number))
            fresh.replace(told)


if __name__ == "__main__":
    main(*sys.argv[1:])
