"""Prometheus metrics of one daemon.

The table of all names, the events that are counted, and the state that is read at a scrape belong here. The status
document, from which much of that state comes, is composed in mount/status.
"""
