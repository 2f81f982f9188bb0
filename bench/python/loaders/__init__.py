"""The loader beside other loaders: rows.py has what is measured, each subject in a process of its own (process.py,
subject.py), so that neither threads nor memory of one is there when another runs."""
