"""The main job of stocached on real image files: what a cached fraction of the dataset does to the time of an epoch.

`make demo` runs it. images.py finds the files, loading.py turns a file into a sample, workers.py and dataloader.py run epochs, experiment.py runs them
at every cached fraction, report.py prints the table and chart.py draws it.
"""
