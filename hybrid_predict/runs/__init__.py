"""One log of a run and what it says, and what commands that train share."""
