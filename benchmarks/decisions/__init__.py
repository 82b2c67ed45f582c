"""Prototypes of decisions; a decision names the commit that has its own."""
