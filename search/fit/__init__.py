"""Fitting a loss law to a user's own runs."""
