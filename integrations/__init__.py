"""Adapters that connect hybrid_predict to training frameworks and loggers."""
