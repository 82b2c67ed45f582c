"""Whether forecasting saves steps at equal quality on a user's own model."""

from hybrid_predict.auditing.arm import AuditArm
from hybrid_predict.auditing.config import AuditConfig
from hybrid_predict.auditing.plan import AuditPlan, plan_audit
from hybrid_predict.auditing.run import AuditResult, audit
from hybrid_predict.auditing.verdict import AuditOutcome, AuditVerdict, judge_audit

__all__ = [
    "AuditArm",
    "AuditConfig",
    "AuditOutcome",
    "AuditPlan",
    "AuditResult",
    "AuditVerdict",
    "audit",
    "judge_audit",
    "plan_audit",
]
