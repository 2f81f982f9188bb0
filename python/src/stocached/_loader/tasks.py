"""What a loader asks of its workers, and what they answer."""

from __future__ import annotations

# Kinds of tasks: load a sample, make a batch, begin an epoch, tell a snapshot.
SAMPLE, BATCH, BEGIN, TELL = 0, 1, 2, 3

ROW = 0  # the sample is in its row
ROW_AND_OBJECTS = 1  # the same, and the overflow has what has no column
WHOLE = 2  # the sample is in the overflow
ERROR = 3  # an exception is
MADE = 4  # a batch is
ENDED = 5  # the worker's part of an iterable dataset is at its end
FROM_CACHE = 16  # is added where the sample, or each sample of the batch, was in the cache after all

NO_BUFFER = 2**32 - 1  # the task has no buffer to write into
