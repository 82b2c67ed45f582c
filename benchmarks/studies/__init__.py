"""What the benchmark measures: a module per kind of study, with its runs and its tables."""
