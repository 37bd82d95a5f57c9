"""Copying: the rows of one memory into another, stored bytes unchanged (``audit copy``)."""
