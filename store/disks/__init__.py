"""One member disk: its identity, usage, health, eligibility and forecast.

Nothing here knows the catalog of segments.
"""
