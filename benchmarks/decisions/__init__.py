"""Prototypes of decisions, which run at the commit that their page names."""
