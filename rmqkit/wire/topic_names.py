"""Topic names that every peer knows.

These are the system topics, and the prefixes of a group's retry and dead-letter topics.

Source: `common/.../topic/TopicValidator.java`, `common/.../MixAll.java`.
"""

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"

AUTO_CREATE_TOPIC = "TBW102"
BENCHMARK_TOPIC = "BenchmarkTest"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
TIMER_TOPIC = "rmq_sys_wheel_timer"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

#: the broker's internal topics, to which clients may not send
SEND_FORBIDDEN = frozenset(
    (SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_EVENT)
)
#: names that no user's topic may have; those of RocksDB and of checkpoints exist only at Apache's
#: brokers
SYSTEM_TOPICS = frozenset(
    (
        *SEND_FORBIDDEN,
        AUTO_CREATE_TOPIC,
        BENCHMARK_TOPIC,
        CHECKPOINT_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_TOPIC,
        TRACE_TOPIC,
    )
)
