"""The example that ``hybrid-predict demo`` audits: a byte-level GPT on Python's own source text."""
