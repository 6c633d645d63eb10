"""Record what the code does before it is moved or renamed, and compare afterwards."""
