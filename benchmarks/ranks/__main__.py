"""Measures on 1, 2 and 4 processes of this machine's CPU, which talk through gloo.

Run with: python -m benchmarks.ranks > docs/results/ranks.json
"""

import json

from benchmarks.ranks.measure import FULL, results
from hybrid_predict.runs.runtime import environment

if __name__ == "__main__":
    print(json.dumps({**results(FULL, (1, 2, 4), "cpu"), "environment": environment()}, indent=1))
