"""Adapters from hybrid_predict to training frameworks and loggers."""
