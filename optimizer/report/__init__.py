"""What the terminal shows, for a tired engineer: one page per answer, built from plain data."""
