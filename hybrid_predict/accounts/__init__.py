"""What a run has done and saved: clock, ledger, operation counts, saved states."""
