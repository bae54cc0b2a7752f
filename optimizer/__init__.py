"""Which layout is best: space, bounds, program, solve, decode, validate, explain."""
