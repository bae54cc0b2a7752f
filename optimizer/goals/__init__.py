"""Goals beside step time: fewest chips within a limit, ties between plans of one value, fronts of two goals."""
