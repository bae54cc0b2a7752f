"""What a layout costs: model, workload, layout, operators, collectives, memory, pipeline, estimate."""
