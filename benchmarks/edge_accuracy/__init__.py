"""Token rates of edge devices: read, predicted by the cost model at fitted rates, and scored with the device left out."""
