"""The audit's search against a sweep over all of its candidates."""
