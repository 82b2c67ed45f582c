"""Views on the user's own objects: parameters and their kinds, optimizers, gradients."""
