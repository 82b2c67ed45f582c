"""Package list: ``integrations/`` is installed as ``hybrid_predict.integrations``."""

from setuptools import find_packages, setup

CORE = "hybrid_predict"
INTEGRATIONS = f"{CORE}.integrations"

setup(
    packages=[
        *find_packages(include=[CORE, f"{CORE}.*"]),
        INTEGRATIONS,
        *(f"{INTEGRATIONS}.{name}" for name in find_packages("integrations")),
    ],
    package_dir={INTEGRATIONS: "integrations"},
)
