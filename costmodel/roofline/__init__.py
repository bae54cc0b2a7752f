"""Time and bound of one operation on one chip, and what a slice of chips adds up to."""
