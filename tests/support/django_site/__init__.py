"""A Django app for the tests of the integration: orders, and tasks about them."""
