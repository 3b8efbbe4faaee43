"""How bytes travel between a coordinator and silos. Nothing here reads a message, and nothing imports torch.

The seam is two functions: `Transport.exchange` at the coordinator sends a message to each silo and returns the
answers that came in time; `answer` at a silo turns a message into an answer. Everything between them (frames on
a Unix socket, an engine's tasks) only carries bytes.
"""
