"""Why this plan, why not another, why none: each reason checked by solving."""
