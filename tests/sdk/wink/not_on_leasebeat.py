"""What of the package's tests runs on Leasebeat, and what cannot pass there, with the reason for each."""

RUN = (
    "integration-tests/test_redis_mailbox_integration.py",
    "tests/contrib/mailbox/test_redis_mailbox_invariants.py",
    "tests/contrib/mailbox/test_redis_mailbox_send_only.py",
    "tests/contrib/mailbox/test_redis_mailbox_stress.py",
    "tests/evals/test_loop.py",
    "tests/runtime/agent_loop/test_cleanup.py",
    "tests/runtime/agent_loop/test_core.py",
    "tests/runtime/agent_loop/test_debug_bundle.py",
    "tests/runtime/agent_loop/test_debug_bundle_content.py",
    "tests/runtime/agent_loop/test_mailbox.py",
    "tests/runtime/agent_loop/test_resources.py",
    "tests/runtime/agent_loop/test_run_context.py",
    "tests/runtime/agent_loop/test_visibility.py",
    "tests/runtime/test_dlq.py",
    "tests/runtime/test_lease_extender.py",
    "tests/runtime/test_lifecycle.py",
    "tests/runtime/test_mailbox.py",
)

LEFT_OUT = {
    "formal-tests/test_redis_mailbox.py": "checks a specification of the Redis scripts",
    "tests/contrib/mailbox/test_redis_mailbox_properties.py": "compares a model with the keys in Redis after every step",
    "tests/contrib/mailbox/test_redis_mailbox_ttl.py": "is about how long keys live in Redis",
    "tests/contrib/test_lazy_imports.py": "is about what the package imports",
}

NOT_ON_LEASEBEAT: dict[str, str] = {}
