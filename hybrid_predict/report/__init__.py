"""The overview of a run, its log, and the figures and pages that show them."""
