"""What of the package's tests runs on Leasebeat, and what cannot pass there, with the reason for each."""

WAITING_LONG = ("tests/contrib/mailbox/test_redis_mailbox_invariants.py",)
WAITING = (
    "integration-tests/test_redis_mailbox_integration.py",
    "tests/contrib/mailbox/test_redis_mailbox_send_only.py",
    "tests/contrib/mailbox/test_redis_mailbox_stress.py",
)
"""Files that mostly wait for timeouts to pass, half of the time the first. All three groups are run side by side."""

WORKING = (
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
"""Files that name a mailbox, and look inside another backend or at none."""

_INVARIANTS = "tests/contrib/mailbox/test_redis_mailbox_invariants.py"
_LIFECYCLE = "tests/runtime/test_lifecycle.py"
_MAILBOX = "tests/runtime/test_mailbox.py"
_RESOURCES = "tests/runtime/agent_loop/test_resources.py"
_SEND_ONLY = "tests/contrib/mailbox/test_redis_mailbox_send_only.py"
_STRESS = "tests/contrib/mailbox/test_redis_mailbox_stress.py"

BY_LUCK = {
    f"{_LIFECYCLE}::test_agent_loop_shutdown_completes_in_flight": "leaves the loop 50 ms to receive",
    f"{_LIFECYCLE}::test_agent_loop_shutdown_nacks_unprocessed_messages": "leaves the loop 50 ms to receive",
    f"{_STRESS}::TestConcurrentStress::test_reaper_under_load": (
        "wants an ack refused that comes late. Leasebeat takes it, unless the machine is so slow that the message was received again"
    ),
}
"""Tests whose end depends on how busy the machine is. They are not run."""

_CLOCK = "sets the clock of a mailbox in memory, and has its reaper run"
_KEYS = "looks at the keys in Redis"
_REDIS = "gives the Redis mailbox a client that does nothing, or a flag of its own"
_OBJECT = "sends what has no JSON form (a mapping whose keys are types): only a mailbox in memory can carry it"

NOT_ON_LEASEBEAT = {
    f"{_INVARIANTS}::TestMessageStateExclusivity::test_reap_and_receive_race": _KEYS,
    f"{_INVARIANTS}::TestMessageStateExclusivity::test_receive_atomic_transition": _KEYS,
    f"{_INVARIANTS}::TestNoMessageLoss::test_all_messages_accounted_for": "draws a text with U+0000, which Leasebeat refuses in a body",
    f"{_SEND_ONLY}::TestRedisMailboxFactory::test_factory_creates_send_only_mailboxes": _REDIS,
    f"{_SEND_ONLY}::TestSendOnlyMailbox::test_regular_mailbox_auto_creates_resolver": _REDIS,
    f"{_SEND_ONLY}::TestSendOnlyMailbox::test_regular_mailbox_starts_reaper_thread": _REDIS,
    f"{_SEND_ONLY}::TestSendOnlyMailbox::test_send_only_mailbox_does_not_auto_create_resolver": _REDIS,
    f"{_SEND_ONLY}::TestSendOnlyMailbox::test_send_only_mailbox_does_not_start_reaper_thread": _REDIS,
    "tests/evals/test_loop.py::test_eval_loop_never_dlq_for_excluded_error": _CLOCK,
    "tests/runtime/agent_loop/test_core.py::test_loop_request_overrides_config": (
        "asks for the very object that was sent, and gets one that is equal"
    ),
    "tests/runtime/agent_loop/test_debug_bundle.py::test_loop_with_debug_bundle_includes_filesystem": (
        "imports `weakincentives.contrib.tools`, which the distributions leave out"
    ),
    f"{_RESOURCES}::test_loop_request_resources_overrides_config": _OBJECT,
    f"{_RESOURCES}::test_same_resources_used_across_visibility_retries": _OBJECT,
    "tests/runtime/test_lease_extender.py::test_hook_context_beat_with_heartbeat": "needs the package `claude_agent_sdk`, and no mailbox",
    f"{_MAILBOX}::TestInMemoryMailbox::test_visibility_timeout_requeues_message": _CLOCK,
    f"{_MAILBOX}::TestInMemoryMailboxCoverage::test_extend_visibility_success": _CLOCK,
}
"""Tests that cannot pass, each with the reason."""
