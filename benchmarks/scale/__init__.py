"""What becomes of the speedup when models grow and runs get longer."""
