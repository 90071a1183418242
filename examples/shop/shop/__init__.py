"""A web shop whose orders and jobs are in one database."""
