"""Django migrations that run TaskHarbor's own. A test checks that the last one runs all of them."""
