"""The benchmark: arms over tasks and settings, with tuned rates and paired seeds."""
