"""Bridges to agent frameworks: work that they do beats for its lease, and stops once the lease is lost.

One module per framework, each with its extra: `pip install leasebeat[claude-agent-sdk]`, `[openai-agents]`, `[langchain]`.

Every event that the framework tells is a beat: the start and the end of a tool, of a model's turn and of an agent, and each
streamed token. A tool that takes long tells nothing meanwhile, so it beats itself, or the queue's leases last longer than it does.

These take a `Context` or a `Heartbeat`:

- With the `Context` of a `Worker`'s handler, each beat reports how many events there were as the progress, so it extends also in
  a queue with `progress_required`. Make one bridge per lease, and use it for all runs under that lease.
- With a `Heartbeat`, which a `LeaseExtender` may be attached to, progress is left to others. A heartbeat cannot tell that the
  lease is lost, so give the event that does: `lost=extender.lost`. A handler that reports progress of its own does the same with
  `context.heartbeat` and `lost=context.lost`.

A `detail` is never reported: it is the handler's, for whoever resumes the work.

`weakincentives` is another kind of bridge: a mailbox for the loops of that package, by the extra of its name.
"""
