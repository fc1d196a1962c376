"""The visit to a GPU: everything worth knowing about a borrowed machine, in one command of at most 560 seconds."""
