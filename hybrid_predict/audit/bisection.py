"""The largest speedup that passes a test, in few tests: bisection over ascending candidates."""

from __future__ import annotations

import math

from hybrid_predict.errors import ConfigError


class Bisection:
    r"""Finds the largest of K ascending candidates that passes, by testing about log2 K of them.

    Takes for granted that whatever is smaller than a candidate that passes would pass too, and
    whatever is larger than one that fails would fail: a longer run is no worse than a shorter one.

    Args:
        count: K, at least 1.

    Raises:
        ConfigError: If ``count`` is below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ConfigError("count", "an integer, at least 1", count)
        self._passed, self._failed = -1, count

    @property
    def due(self) -> int | None:
        """Which candidate to test next, from 0; None once the answer cannot change."""
        if self._failed - self._passed <= 1:
            return None
        return (self._passed + self._failed) // 2

    @property
    def best(self) -> int | None:
        """The largest candidate that has passed so far; None if none has."""
        return self._passed if self._passed >= 0 else None

    def tell(self, passed: bool) -> None:
        """Give the outcome of the candidate that is due.

        Raises:
            ConfigError: If none is due.
        """
        if (due := self.due) is None:
            raise ConfigError("passed", "a candidate that is due", "none")
        if passed:
            self._passed = due
        else:
            self._failed = due


def tested(count: int, border: int) -> list[int]:
    """The candidates that are tested, in order, where those from ``border`` on fail."""
    bisection, found = Bisection(count), list[int]()
    while (due := bisection.due) is not None:
        found.append(due)
        bisection.tell(due < border)
    return found


def most_tests(count: int) -> int:
    """Tests of the longest way through ``count`` candidates."""
    return math.ceil(math.log2(count + 1))


def level(alpha: float, count: int, searches: int = 1) -> float:
    r"""Level of each test that keeps the error of all searches together below ``alpha``.

    The answer is wrong if one of the candidates that were tested passes though it should not.
    A search tests at most :func:`most_tests` candidates, so with Bonferroni's bound, which holds
    for tests that depend on each other,

    .. math:: \alpha' = \alpha / (\text{searches} \lceil \log_2 (K + 1) \rceil).

    Args:
        alpha: Probability of a wrong answer, one-sided.
        count: K, candidates of each search.
        searches: Searches whose best answer is taken.
    """
    return alpha / (searches * most_tests(count))
