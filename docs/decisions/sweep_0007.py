"""What decides whether spectral forecasts pay: the variants of decision 7."""

from __future__ import annotations

from typing import Any, ClassVar

from earlier import earlier, spectral

from hybrid_predict import FixedHorizon, SpectralPredictor


class UpdateKept(SpectralPredictor):
    """The same forecast in addition to the optimizer's update."""

    replaces_update: ClassVar[bool] = False

    def observe(self, state, observed, applied, backend, lengths=None):  # type: ignore[no-untyped-def]
        """Flatten the average displacement, since no gradient is given."""
        super().observe(state, [-x for x in observed], None, backend, backend.norms(observed))


VARIANTS: dict[str, dict[str, Any]] = {
    "default": earlier(),
    "horizon 1": earlier(horizon=FixedHorizon(updates=1.0)),
    "O every 2 full steps": earlier(predictors={"hidden": spectral(refresh_every=2)}),
    "horizon 4": earlier(horizon=FixedHorizon(updates=4.0)),
    "displacements, update kept": earlier(
        predictors={"hidden": spectral(UpdateKept)},
        horizon=FixedHorizon(updates=0.7),
    ),
}
