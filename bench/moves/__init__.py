"""Cost of moving segments between disks: to a broker that sends meanwhile, to a given rate, and to the page cache.

Everything here measures `disk drain` of a running mount through its control socket, as the command does.
"""
