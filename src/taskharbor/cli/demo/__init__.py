"""What `taskharbor demo` shows: real workers, jobs that go wrong in every way, and an honest ledger."""
