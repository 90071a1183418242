"""Amazon SQS, by boto3, which is loaded on the first call and not before."""

from taskharbor.delivery.sqs.queues import PREFIX, sqs_name
from taskharbor.delivery.sqs.transport import SqsTransport

__all__ = ["PREFIX", "SqsTransport", "sqs_name"]
