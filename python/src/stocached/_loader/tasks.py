"""The kinds of tasks for workers, and the results in their answers."""

from __future__ import annotations

# Kinds of tasks: load a sample, make a batch, begin an epoch, send a snapshot, read items.
SAMPLE, BATCH, BEGIN, TELL, ITEMS = 0, 1, 2, 3, 4

ROW = 0  # the sample is in its row
ROW_AND_OBJECTS = 1  # the same, and the overflow has the values without a column
WHOLE = 2  # the sample is in the overflow
ERROR = 3  # an exception is in the overflow
MADE = 4  # a batch is in the overflow
ENDED = 5  # the worker's part of an iterable dataset has ended
BAD = 6  # a BadSample is in the overflow
FROM_CACHE = 16  # added if the sample, or each sample of the batch, came from the cache

NO_BUFFER = 2**32 - 1  # the task has no buffer to write into
