"""Forecasts of the weights' movement: predictors, windows that test them, and predicted steps."""
