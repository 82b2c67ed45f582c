"""Verification of predicted steps: measurements, the judge, and running baselines."""
