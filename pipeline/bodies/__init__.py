"""Message bodies as a consumer gets them: decompressed, as text, and unfolded from batches.

Nothing here reads a file or knows columns.
"""
