"""Global random number generators (`random`, `numpy.random`, `torch`): their states, and whether
they were used.

Also the seeds of samples and of workers.

Imports: nothing of this project."""
