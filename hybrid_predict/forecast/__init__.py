"""Forecasts of the weights' movement: predictors, their skill, and groups of tensors."""
