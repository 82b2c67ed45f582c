"""When predicted steps are made, how many and how far: decided on the host, in plain numbers."""
