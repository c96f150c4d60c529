"""What one member disk is and what state it is in: identity, usage, health, eligibility, forecast.

Nothing here knows the catalog of segments.
"""
