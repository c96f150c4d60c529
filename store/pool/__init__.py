"""The pool as a whole: birth, scan, inventory, catalog, the open log.

Policy belongs to store.placement and store.retention.
"""
