"""An SQS of our own over HTTP, which fails as it is told: for tests."""

from taskharbor.testing.sqs.endpoint import Endpoint
from taskharbor.testing.sqs.faults import EndpointFaults, StaleReceipts

__all__ = ["Endpoint", "EndpointFaults", "StaleReceipts"]
