"""Metrics for Prometheus, and the dashboard that shows them."""
