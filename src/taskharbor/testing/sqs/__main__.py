"""Run the endpoint in a process of its own, which a test can kill.

python -m taskharbor.testing.sqs --port 4100 --faults '{"lose": 0.1, "errors": {"ThrottlingException": 0.05}}'
"""

from __future__ import annotations

import argparse
import signal

from taskharbor.testing.sqs.endpoint import Endpoint
from taskharbor.testing.sqs.faults import EndpointFaults


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m taskharbor.testing.sqs", description="An SQS endpoint for tests.")
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0: any free port")
    parser.add_argument(
        "--faults", type=EndpointFaults.from_json, default=EndpointFaults(), help="the faults to inject, as JSON"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers that decide about faults")
    options = parser.parse_args()
    # Block the signals before the endpoint starts its thread, which would otherwise receive them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with Endpoint.start(port=options.port, faults=options.faults, seed=options.seed) as endpoint:
        print(endpoint.url, flush=True)  # noqa: T201  the parent process waits for this line
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
