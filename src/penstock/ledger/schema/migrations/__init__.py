"""The kernel's revisions, one file each, numbered without a gap. A revision that was released is never edited."""
