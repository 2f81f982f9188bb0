"""Compares the loader with other loaders. rows.py lists the measurements. Each subject has its own
process (process.py, subject.py), so that its threads and memory are not there when another subject
runs."""
