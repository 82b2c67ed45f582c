"""The rules on plain numbers, NumPy's arrays, and JAX's inside a compiled function."""

from typing import Any

import jax
import jax.numpy
import numpy as np

from hybrid_predict.rules.numbers import library


def in_every_library(rule: Any, *arguments: Any) -> list[Any]:
    """Return the results of a rule as nested lists of numbers, for each library."""
    of_arrays = jax.tree_util.tree_map(np.asarray, arguments)
    of_jax = jax.tree_util.tree_map(jax.numpy.asarray, arguments)
    assert library(*jax.tree_util.tree_leaves(of_arrays)) is np
    results = rule(*arguments), rule(*of_arrays), jax.jit(rule)(*of_jax)
    return [[np.asarray(leaf).tolist() for leaf in jax.tree_util.tree_leaves(r)] for r in results]
