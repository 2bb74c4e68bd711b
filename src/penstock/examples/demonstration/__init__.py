"""The demonstration: lifecycles side by side on one ledger, over sixty days that pass in seconds.

It is an ordinary configuration, which it leaves behind. Each lifecycle has a part of its own, behind the interface of
`part`; `play` runs them all.
"""
