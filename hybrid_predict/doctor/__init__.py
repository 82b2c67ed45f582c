"""The doctor: what the callback would do with a Trainer, from a few full steps of training."""
