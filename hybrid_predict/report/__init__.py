"""What people look at after a run: its history, figures and pages."""

from hybrid_predict.report.history import RunHistory

__all__ = ["RunHistory"]
