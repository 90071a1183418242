"""Delivery: message queue services that carry the ids of due jobs to workers."""
