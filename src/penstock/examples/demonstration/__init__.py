"""The demonstration: lifecycles side by side on one ledger, over sixty days that pass in seconds.

`program` is the App, for every command that reads the ledger afterwards. Each lifecycle has a part of its own, behind
the interface of `part`; `play` runs them all.
"""

from penstock.examples.demonstration.program import app as app
