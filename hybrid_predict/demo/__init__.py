"""The demo: a small GPT on the source text of the standard library, trained in several arms."""
