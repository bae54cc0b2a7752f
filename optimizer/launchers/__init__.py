"""What each launcher can run: rule sets that bound the space. See `catalogue`."""
