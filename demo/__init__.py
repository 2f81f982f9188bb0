"""The demos.

`make demo` is the main job of stocached on real image files: how the cached fraction of the dataset
changes the time of an epoch. images.py finds the files. loading.py makes a sample of a file.
workers.py and dataloader.py run epochs. experiment.py runs them at every cached fraction. report.py
prints the table, and chart.py draws it. jpegs.py saves the pictures as JPEG. pipelines.py takes random
crops of them with Pillow and with stocached.image, and pipelines_report.py prints that table.

`make demo-cluster` runs cluster.py: one job on three hosts, which are namespaces (hosts.py). The ranks
run cluster_rank.py.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tools"))  # has warm.py and draw_results.py
