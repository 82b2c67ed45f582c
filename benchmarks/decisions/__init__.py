"""Programs of decisions; they are removed once their rows are committed."""
