"""The transport over Amazon SQS. boto3 is imported on the first call."""

from taskharbor.delivery.sqs.queues import PREFIX, sqs_name
from taskharbor.delivery.sqs.transport import SqsTransport

__all__ = ["PREFIX", "SqsTransport", "sqs_name"]
