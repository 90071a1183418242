"""The demo of `taskharbor demo`: worker processes, failing jobs, and a ledger of the results."""
