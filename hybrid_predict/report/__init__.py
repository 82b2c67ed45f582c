"""Run logs, and the figures and pages that show them."""
