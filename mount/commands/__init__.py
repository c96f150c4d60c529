"""One module for each verb of `commitlogfs`: arguments in, text and an exit status out.

All other work of a verb belongs to the other rooms.
"""
