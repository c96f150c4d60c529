"""Parts that all commands of commitlogfs share: exit statuses, user errors, settings, units, text.

Code about mounts, the store or Spark does not belong here.
"""
