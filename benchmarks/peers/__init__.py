"""Published optimizers and accelerators that the plug-in is compared with."""
