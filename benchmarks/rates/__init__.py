"""What learning rates that nobody tuned cost, with and without the plug-in."""
