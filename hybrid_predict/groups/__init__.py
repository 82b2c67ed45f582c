"""The tensors that are corrected or predicted: their memory, corrections, forecasts and skill."""
