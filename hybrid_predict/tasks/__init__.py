"""Small, offline training tasks that show and check the forecasts at work."""
