"""The model, free of any database or web framework.

A **message** is work with a state. A **lease** is the right of one worker to one message until it expires. Each lease that a message
ever had bears a **generation**: 1, 2, 3, … The **receipt** names a lease by message and generation, signed so that it cannot be
guessed; every call about a lease shows it, and acts only while that generation holds the lease. A **beat** extends the lease; ack,
nack and release end it; when it runs out, it is reclaimed.

    scheduled ──due──▶ pending ──claim──▶ in_progress ──ack──▶ completed
        ▲                 ▲                   │
        │                 ├──────release──────┤
        └─────backoff─────┴──nack, run out────┴──last attempt──▶ failed, or pending in the dead-letter queue

Whatever is not final may be cancelled. A redrive sends dead letters and failed messages back to `pending`.
"""
