"""Scripts of shipped nodes in virtual time: short stories, and what users and operators see of them."""
