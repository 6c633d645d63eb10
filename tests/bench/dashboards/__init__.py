"""Whether the dashboards show something."""
