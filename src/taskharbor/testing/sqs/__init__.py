"""An SQS endpoint over HTTP for tests, with configurable faults."""

from taskharbor.testing.sqs.endpoint import Endpoint
from taskharbor.testing.sqs.faults import EndpointFaults, StaleReceipts
from taskharbor.testing.sqs.signatures import AccessKey

__all__ = ["AccessKey", "Endpoint", "EndpointFaults", "StaleReceipts"]
