"""Whether full steps are saved at equal quality on a user's own model, and by what."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_predict.audit.arm import AuditArm
    from hybrid_predict.audit.config import AuditConfig
    from hybrid_predict.audit.plan import AuditPlan, plan_audit
    from hybrid_predict.audit.run import AuditResult, audit
    from hybrid_predict.audit.search_plan import SearchPlan, plan_search
    from hybrid_predict.audit.searching import SearchResult, search
    from hybrid_predict.audit.verdict import AuditOutcome, AuditVerdict, judge_audit

__all__ = [
    "AuditArm",
    "AuditConfig",
    "AuditOutcome",
    "AuditPlan",
    "AuditResult",
    "AuditVerdict",
    "SearchPlan",
    "SearchResult",
    "audit",
    "judge_audit",
    "plan_audit",
    "plan_search",
    "search",
]

_HOMES = {
    "AuditArm": "arm",
    "AuditConfig": "config",
    "AuditOutcome": "verdict",
    "AuditPlan": "plan",
    "AuditResult": "run",
    "AuditVerdict": "verdict",
    "SearchPlan": "search_plan",
    "SearchResult": "searching",
    "audit": "run",
    "judge_audit": "verdict",
    "plan_audit": "plan",
    "plan_search": "search_plan",
    "search": "searching",
}
"""Module of each public name, imported on first access: a file is checked without torch."""

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first access."""
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
