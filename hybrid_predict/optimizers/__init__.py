"""The optimizers: their updates, what they do besides following the gradient, and hooks."""
