"""The rules: decisions from measured numbers, as pure functions, also under ``jax.jit``."""
