"""What a client is: a published package that trains, with its own defaults, on small data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, ClassVar, final

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
}
"""What every Trainer is given."""


class Client(ABC):
    """A model of a package, its data, and the way in which the package trains it.

    All but what is named in ``trains`` is the package's default.

    Attributes:
        package: The distribution that holds it.
        trains: The model, the data, and every setting that is not a default.
        metric: The package's own validation metric.
        lower: Whether less of it is better.
        length: Length of the full run, in ``unit``.
        unit: What the package counts a run's length in: ``epochs`` or ``steps``.
    """

    package: ClassVar[str]
    trains: ClassVar[str]
    metric: ClassVar[str]
    lower: ClassVar[bool] = True
    length: ClassVar[int]
    unit: ClassVar[str] = "epochs"

    @abstractmethod
    def data(self, seed: int) -> Any:
        """What is trained and validated on.

        Args:
            seed: Of its split, and of what is made.
        """

    @abstractmethod
    def train(self, data: Any, length: int, callbacks: Sequence[Any]) -> Any:
        """Train as the package's own pages do; the generators have been seeded.

        Args:
            data: What :meth:`data` gave.
            length: Of the run, in ``unit``.
            callbacks: For the Trainer, the plug-in among them.

        Returns:
            What :meth:`quality` needs.
        """

    @abstractmethod
    def quality(self, trained: Any, data: Any) -> float:
        """The metric of what was trained, on data that it was not trained on."""

    @final
    def to_dict(self) -> dict[str, Any]:
        """What is trained, as plain data."""
        names = ("package", "trains", "metric", "lower", "length", "unit")
        return {**{n: getattr(self, n) for n in names}, "version": version(self.package)}
