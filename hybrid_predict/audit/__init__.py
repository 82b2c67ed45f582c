"""Audits: whether full steps are saved at equal quality on a user's own model."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hybrid_predict.audit.arm import AuditArm
    from hybrid_predict.audit.config import AuditConfig
    from hybrid_predict.audit.plan import AuditPlan, plan_audit, plan_search
    from hybrid_predict.audit.run import AuditResult, audit
    from hybrid_predict.audit.searching import SearchResult, search
    from hybrid_predict.audit.verdict import AuditOutcome, AuditVerdict, judge_audit

__all__ = [
    "AuditArm",
    "AuditConfig",
    "AuditOutcome",
    "AuditPlan",
    "AuditResult",
    "AuditVerdict",
    "SearchResult",
    "audit",
    "judge_audit",
    "plan_audit",
    "plan_search",
    "search",
]

_NAMES = {
    "arm": ("AuditArm",),
    "config": ("AuditConfig",),
    "plan": ("AuditPlan", "plan_audit", "plan_search"),
    "run": ("AuditResult", "audit"),
    "searching": ("SearchResult", "search"),
    "verdict": ("AuditOutcome", "AuditVerdict", "judge_audit"),
}
"""Public names by module, imported on first access: checking a file needs no torch."""

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name on first access."""
        module = next((module for module, names in _NAMES.items() if name in names), None)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{__name__}.{module}"), name)
        except ModuleNotFoundError as error:
            if error.name in ("lightning", "lightning.pytorch"):
                from hybrid_predict.errors import MissingExtraError

                raise MissingExtraError("The audit", "lightning") from error
            raise


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
