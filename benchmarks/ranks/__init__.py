"""What corrected updates cost on several ranks: counted, timed, and by formula."""
