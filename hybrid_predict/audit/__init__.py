"""Whether full steps are saved at equal quality on a user's own model, and by what."""

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
