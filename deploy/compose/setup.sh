#!/bin/sh
# Runs before all services: creates the tables, the SQS queues, and a key for the API. It is safe to repeat.
set -eu

taskharbor migrate up
taskharbor sqs setup
if [ ! -s "$KEYS/api" ]; then
    taskharbor keys create compose --scope jobs:read --scope jobs:write --scope metrics:read > "$KEYS/api.new"
    mv "$KEYS/api.new" "$KEYS/api"
fi
