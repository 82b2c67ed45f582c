"""When predicted steps are made, how many and how far, and how often matrices are corrected.

All is decided on the host, in plain numbers. A run without predicted steps needs `policy`,
`schedule`, `limits`, `overfitting` and `budget` alone. What else stands in the way of predicted
steps: skill and advance (`confidence`), a failed test (`verdict`), too few weights (`predicting`).
"""
