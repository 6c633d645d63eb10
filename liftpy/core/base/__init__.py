"""Names, identities and invariants that all parts of the core use."""
