"""One model on one device, operator by operator: FLOPs, bytes and seconds of prefill and decode, memory."""
