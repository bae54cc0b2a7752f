"""Sharded arrays in the notation A[I_X,J]: what a product of them must move, and the cheapest way."""
