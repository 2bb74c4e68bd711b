"""Bulk actions: a plan of more than a thousand moves, carried out by a unit of its own.

The units that were seen are kept as rows, each with the version that was seen, so that nothing is moved that nobody
saw. A worker moves them by the set; a crash interrupts it between two sets, and the next worker goes on from there.
"""
