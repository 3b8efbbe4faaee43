"""NVFlare as a carrier of bytes between a coordinator and the silos' guards.

NVFlare needs no trust here: the guard and the coordinator sign what they send and check what they receive.
Modules of the silo's side are written against a server that lies.

- `kit` makes one folder per party and checks a folder before anything starts from it.
- `node` runs at a silo, `server` beside the coordinator. Both stay in the foreground until SIGTERM.
- `transport` is the coordinator's `Transport`. It submits the job whose two ends are `controller` (in the
  server's job process) and `executor` (in a node's job process, in front of the guard's Unix socket).
- `gate` and `worker` take from a node's two processes what a lying server could misuse.

This package needs the extra `nvflare`, except for `kit.check_kit`.
"""
