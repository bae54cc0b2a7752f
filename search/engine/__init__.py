"""Best shapes and fronts over grids too large to list: bound, prune, prove."""
