"""The node of liftpy: a process next to each application.

It does the input and output for the decisions of package ``liftpy``.
"""
