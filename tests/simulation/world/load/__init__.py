"""Load of a history: clients, operators, services, backups and attackers."""
