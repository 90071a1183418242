"""The truth: stores that keep jobs, all under one contract (`taskharbor.drivers.base`)."""
