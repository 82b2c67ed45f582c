"""Committed figures were drawn from the committed data."""

import hashlib

import pytest
from PIL import Image

from benchmarks import RESULTS
from benchmarks.registry import STUDIES


@pytest.mark.parametrize(
    ("figure", "data"),
    [(figure, study.file) for study in STUDIES.values() for figure in study.figures],
)
def test_committed_figures_were_drawn_from_the_committed_data(figure, data):
    with Image.open(RESULTS / figure) as picture:
        source = picture.text.get("Source")
    assert source == hashlib.sha256((RESULTS / data).read_bytes()).hexdigest()
