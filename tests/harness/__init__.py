"""What the tests run on: a real Postgres, and real server processes."""
