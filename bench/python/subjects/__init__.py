"""Ways to do the work of a case, each in a process of its own (harness.Process)."""
