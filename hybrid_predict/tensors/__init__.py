"""Arithmetic on tensors: lists of them, movements, and the directions of matrices."""
