"""Forecasts of how weights will move: predictors, and the tensors that they follow."""
