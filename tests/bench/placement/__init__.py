"""How long a placement takes, and how even it is."""
