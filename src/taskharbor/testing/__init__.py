"""Test tools: a harness for tasks, the driver conformance kit, a simulator, and test servers for PostgreSQL and SQS."""
