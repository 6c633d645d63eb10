"""``python -m tests.system.drill``: an operator sees the cause of each fault, with the same word in all places."""
