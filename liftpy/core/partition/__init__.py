"""What runs one partition on a node, in the simulator and in memory."""
