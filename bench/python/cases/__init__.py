"""The cases of each topic: CASES has functions that take a harness.Run."""
