"""Audits: whether full steps are saved at equal quality on a user's own model."""

from hybrid_predict.errors import MissingExtraError

try:
    from hybrid_predict.audit.arm import AuditArm
except ModuleNotFoundError as error:
    if error.name in ("lightning", "lightning.pytorch"):
        raise MissingExtraError("The audit", "lightning") from error
    raise
from hybrid_predict.audit.config import AuditConfig
from hybrid_predict.audit.plan import plan_audit
from hybrid_predict.audit.run import AuditResult, audit
from hybrid_predict.audit.search import SearchResult, search
from hybrid_predict.audit.training import Observer
from hybrid_predict.audit.verdict import AuditOutcome, AuditVerdict, judge_audit

__all__ = [
    "AuditArm",
    "AuditConfig",
    "AuditOutcome",
    "AuditResult",
    "AuditVerdict",
    "Observer",
    "SearchResult",
    "audit",
    "judge_audit",
    "plan_audit",
    "search",
]
