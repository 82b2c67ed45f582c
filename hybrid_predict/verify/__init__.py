"""Whether predicted steps may stand: what is measured, and the judgement on it."""
