"""``python -m tests.system.audit [--kills N]``: metadata leaders are killed, each event is in its stream once."""
