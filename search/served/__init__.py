"""Shape with tensor-parallel ways and batch: the best loss that a slice serves within a decode latency."""
