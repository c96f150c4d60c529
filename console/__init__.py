"""What every command of commitlogfs has in common: exit statuses, errors that a user sees, settings, units, text.

Nothing of a mount, of the store or of Spark belongs here.
"""
