"""Package list: ``integrations/`` is installed as ``hybrid_predict.integrations``.

In the source tree a symbolic link leads there, for tools that read it. The mapping does not need
the link, which some checkouts replace by a text file.
"""

from setuptools import find_packages, setup

CORE = "hybrid_predict"
INTEGRATIONS = f"{CORE}.integrations"

setup(
    packages=[
        *find_packages(include=[CORE, f"{CORE}.*"], exclude=[INTEGRATIONS]),
        INTEGRATIONS,
    ],
    package_dir={INTEGRATIONS: "integrations"},
)
