"""The hint: carrying the ids of due jobs to workers. Nothing here decides anything."""
