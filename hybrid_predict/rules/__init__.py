"""What is decided from measured numbers: pure functions, for the engine and under ``jax.jit``."""
