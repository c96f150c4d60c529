"""One module per verb of `commitlogfs`: arguments in, text and an exit status out.

What a verb does beyond that belongs to the other rooms.
"""
