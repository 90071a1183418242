"""What services report about themselves: log lines of attempts, dead letters and outages."""
