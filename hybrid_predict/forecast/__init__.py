"""Forecasts of the weights' movement: predictors, and the windows that compare them with it."""
