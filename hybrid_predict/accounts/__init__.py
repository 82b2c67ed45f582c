"""Bookkeeping of a run: clock, ledger, operation counts and saved state."""
