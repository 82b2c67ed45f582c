"""Shared by all commands that train: observers, locks, MLflow, statistics over seeds."""
