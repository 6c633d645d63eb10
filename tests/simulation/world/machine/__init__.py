"""Simulated operating system: time, threads, processes, disks, network, NATS servers and a supervisor."""
