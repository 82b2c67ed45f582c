"""The model: its parameters, their kinds, what an undo needs, and what a full step costs."""
