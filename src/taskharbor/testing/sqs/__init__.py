"""An SQS endpoint over HTTP for tests, with configurable faults."""

from taskharbor.testing.sqs.endpoint import Endpoint
from taskharbor.testing.sqs.faults import EndpointFaults, StaleReceipts

__all__ = ["Endpoint", "EndpointFaults", "StaleReceipts"]
