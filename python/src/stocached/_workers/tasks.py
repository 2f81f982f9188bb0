"""The kinds of tasks for workers, and the results in their answers."""

from __future__ import annotations

# Kinds of tasks: load a sample, make a batch, begin an epoch, send a snapshot, read items.
SAMPLE, BATCH, BEGIN, TELL, ITEMS = range(5)
REQUESTS = BATCH, BEGIN, TELL, ITEMS  # these have a request in the overflow until the parent has read the answer
# Of a stream: open the files of rows, read a step into a buffer, read more rows of a step, end the epoch.
OPEN, STEP, ROUND, END = range(5, 9)

ROW = 0  # the sample, or all that was to be read, is in its rows
ROW_AND_OBJECTS = 1  # the same, and the overflow has the values without a column
WHOLE = 2  # the sample is in the overflow
ERROR = 3  # an exception is in the overflow
MADE = 4  # a batch, or the report of a stream's worker, is in the overflow
ENDED = 5  # the worker's part of an iterable dataset has ended
BAD = 6  # a BadSample is in the overflow
FROM_CACHE = 16  # added if the sample, or each sample of the batch, came from the cache

NO_BUFFER = 2**32 - 1  # the task has no buffer to write into
