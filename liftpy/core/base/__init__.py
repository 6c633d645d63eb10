"""What every part of the core uses: names, identities, invariants."""
