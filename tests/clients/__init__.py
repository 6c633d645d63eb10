"""Clients of other hands against a stream: what a JetStream publisher of any language is promised, checked with the real ones."""
