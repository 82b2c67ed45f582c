"""What the checks are given: an object of the right kind, or an error that says how to make one."""

from __future__ import annotations

import inspect

from hybrid_predict.errors import ConfigError
from hybrid_predict.forecast.predictors import PREDICTORS, AbstractPredictor
from hybrid_predict.updates import UPDATES, AbstractUpdate

_REGISTERED: dict[type, dict[str, type]] = {
    AbstractPredictor: dict(PREDICTORS),
    AbstractUpdate: dict(UPDATES),
}


def expect(argument: str, value: object, kind: type) -> None:
    """Check that an argument is an object of a class.

    Args:
        argument: Its name.
        value: What came.
        kind: The class.

    Raises:
        ConfigError: If it is not.
    """
    if isinstance(value, kind):
        return
    article = "an" if kind.__name__[0] in "AEIO" else "a"
    remedy = _remedy(value, kind)
    raise ConfigError(argument, f"{article} object of {kind.__name__}", value, remedy)


def _remedy(value: object, kind: type) -> str:
    """What to write in place of a value that is no object of a class."""
    known = _REGISTERED.get(kind, {})
    if inspect.isclass(value) and issubclass(value, kind):
        return f"Make one of the class: {value.__name__}(...)."
    if isinstance(value, str) and value in known:
        return f"Make one: {known[value].__name__}()."
    base = kind.__name__
    return f"Derive its class from {base}." if known else f"Make one: {base}(...)."
