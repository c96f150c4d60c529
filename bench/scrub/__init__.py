"""Speed of a scrub beside a plain reader of the same files, and its cost to a broker and to the page cache."""
