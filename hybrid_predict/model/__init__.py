"""The model: its parameters, their kinds, gradients and buffers, and what a full step costs."""
