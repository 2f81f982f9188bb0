"""Global random number generators (`random`, `numpy.random`, `torch`): their states, their seeds, and whether they were used.

Imports: nothing of this project.
"""
