"""TaskHarbor beside other job systems: the same work on one PostgreSQL server, in turns, reported as ratios."""
