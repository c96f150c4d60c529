"""The border with the kernel: session, handshake, inode numbers, backing files, invalidation.

Nothing here touches the contents of a pool.
"""
