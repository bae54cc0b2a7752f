"""One exchange on the network: collectives by name, transfers, the switches of a fabric, a pipeline alone."""
