"""How bytes travel between a coordinator and silos. Nothing here reads a message or imports torch.

The seam is two functions. At the coordinator, `Transport.exchange` sends a message to each silo and returns
the answers that came in time. At a silo, `answer` turns a message into an answer. Everything between them
(frames on a Unix socket, an engine's tasks) only carries bytes.
"""
