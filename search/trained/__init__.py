"""Shape and layout in one proof: the best loss that a cluster trains within a deadline."""
