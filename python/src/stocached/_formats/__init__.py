"""Files that hold more than one sample, as they lie: which format a file has (registry.py), and the elements of several files
as one sequence (elements.py). A module of each format has its class."""
