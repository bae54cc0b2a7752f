"""The device as a decision: the cheapest that reaches a loss in time, one shape for several, what optima share."""
