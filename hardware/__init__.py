"""What machines are: units, chips, networks, clusters, prices and calibration data."""
