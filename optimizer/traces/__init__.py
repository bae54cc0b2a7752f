"""Profiler traces: read, measured, set beside a plan and the roofline, and turned into an efficiency file."""
