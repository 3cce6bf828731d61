"""Bridges to host libraries; each host is imported only when its bridge is used."""
