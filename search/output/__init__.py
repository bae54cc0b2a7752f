"""Answers of a search as files: config.json of shapes, tables of what was priced, plots."""
