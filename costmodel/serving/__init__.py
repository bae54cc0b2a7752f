"""Decode and prefill on a slice: seconds, what fits, how to cut it, servers and money."""
