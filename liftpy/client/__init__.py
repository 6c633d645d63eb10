"""What applications import: connect, publish, consume, administer."""
