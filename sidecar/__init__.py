"""The daemon beside each application: it does what ``liftpy`` decides."""
