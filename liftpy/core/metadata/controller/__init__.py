"""Decisions of the metadata group: what each request changes in the image, one module per family of requests."""
