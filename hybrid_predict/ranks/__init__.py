"""Several ranks: process groups, sharded tensors, and the rank that owns each matrix."""
