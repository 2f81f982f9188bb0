"""Pipes: chains of stages that say which items a program reads, in which order, and what is done to them
(docs/spec/pipes.md).

stage.py says what a stage is. There are sources.py, functions.py, caching.py, shuffling.py, combining.py of several
pipes, and batches.py, with the sequences of visits in visits.py. A loader runs a pipe as its arguments say
(loader_arguments.py), over the datasets in element_datasets.py. The arguments of a loader without a pipe are stages too
(loader_chain.py).

Items get into files by filling.py, under writing.py (of a pipe) and preparing.py (of classes of the program)."""
