"""The HTTP API's endpoints, one module for each resource."""
