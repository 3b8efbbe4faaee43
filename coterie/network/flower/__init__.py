"""Flower as a carrier of bytes, for federations that already run it.

Flower needs no trust here: the guard and the coordinator sign what they send and check what they receive.
That matters, because whoever may start a run at a Flower server runs code at every node. A node must be
a user of its own, who can read nothing and reach nothing but the guard's socket.

- `app` writes the application that is submitted. It holds no code but the names of two objects in `carrier`.
- `carrier` has these objects: the end at the server, and the end at a node, in front of the guard's socket.
- `transport` is the coordinator's `Transport`. It starts a run, and a new one if that dies.

This package needs the extra `flower`.
"""
