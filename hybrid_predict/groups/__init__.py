"""The tensors that are corrected or predicted: their memory, corrections and forecasts."""
