"""When predicted steps are made, how many and how far, and how often matrices are corrected.

All is decided on the host, in plain numbers. What stands in the way of predicted steps: the plan
(`schedule`), skill and advance (`confidence`), pauses after a bad loss (`limits`), a failed test
(`verdict`), a run that overfits (`overfitting`), and too few weights or operations (`policy`,
`budget`).
"""
