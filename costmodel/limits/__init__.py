"""When training layouts stop being compute bound; how long, dear and often interrupted a run is."""
