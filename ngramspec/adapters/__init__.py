"""Adapters for host libraries; each host is imported only when its adapter is used."""
