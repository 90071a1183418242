"""Integrations with web frameworks. Each needs its framework, and none is imported by the rest of TaskHarbor."""
