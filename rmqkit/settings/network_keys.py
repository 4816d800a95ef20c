"""Rows of both kinds of node: the network (Apache's NettyServerConfig and NettyClientConfig), TLS, and our own limits."""

from __future__ import annotations

from rmqkit.settings.nameserver_keys import seconds_as_ms
from rmqkit.settings.table import Row, Type, in_area, no_effect, refused, works

NO_NETTY = "connections are served by one selector loop: there is no Netty to tune"
CLEAR_TEXT = "TLS is not built yet: the connections that it should protect would be in clear text"

BROKER_ROWS: tuple[Row, ...] = in_area(
    "Identity and addresses",
    works(
        "bindAddress",
        Type.STR,
        "0.0.0.0",
        "network.bind_address",
        "address to listen on",
        pattern=r"\S+",
        allowed="an address",
    ),
)

LIMITS = in_area(
    "Network and limits",
    works(
        "serverChannelMaxIdleTimeSeconds",
        Type.INT,
        120,
        "limits.idle_close_ms",
        "a connection that is silent for so long is closed, in s",
        low=1,
        high=86_400,
        convert=seconds_as_ms,
    ),
    works(
        "connectTimeoutMillis",
        Type.INT,
        3000,
        "limits.connect_timeout_ms",
        "how long a connection to another node may take, in ms",
        low=1,
    ),
    works(
        "serverSocketBacklog",
        Type.INT,
        1024,
        "limits.socket_backlog",
        "connections that may wait to be accepted",
        low=1,
        high=65_535,
    ),
    works(
        "frameSizeMax",
        Type.INT,
        16_777_216,
        "limits.frame_size_max",
        "largest frame, in bytes; a longer one closes its connection",
        low=65_536,
        high=1_073_741_824,
    ),
    works(
        "frameCompleteMillis",
        Type.INT,
        60_000,
        "limits.frame_complete_ms",
        "a frame that is not complete so long after its first byte closes its connection, in ms",
        low=100,
    ),
    works(
        "connectionsMax",
        Type.INT,
        10_000,
        "limits.connections_max",
        "connections at a time; more are closed at once",
        low=1,
    ),
    works(
        "connectionsPerIpMax",
        Type.INT,
        5000,
        "limits.connections_per_ip_max",
        "connections at a time from one address (of IPv6, from one /64); more are closed at once",
        low=1,
    ),
    works(
        "remoteConfigUpdateEnable",
        Type.BOOL,
        False,
        "limits.remote_config_update",
        "settings may be changed at run time from other machines too; until there is access control, that is by anybody",
    ),
    works(
        "partialBytesMax",
        Type.LONG,
        268_435_456,
        "limits.partial_bytes_max",
        "bytes of half-received frames that all connections may hold together",
        low=65_536,
    ),
    works(
        "outboxHighWater",
        Type.INT,
        4_194_304,
        "limits.outbox_high_water",
        "unsent bytes of a connection above which it is not read any more",
        low=1024,
    ),
    works(
        "outboxLowWater", Type.INT, 1_048_576, "limits.outbox_low_water", "unsent bytes below which it is read again", low=0
    ),
    works("outboxMax", Type.INT, 67_108_864, "limits.outbox_max", "unsent bytes at which it is closed", low=65_536),
    works(
        "unsentBytesMax",
        Type.LONG,
        536_870_912,
        "limits.unsent_bytes_max",
        "unsent bytes that all connections may hold together; beyond it the one with the most is closed",
        low=65_536,
    ),
    works(
        "spinPolls",
        Type.INT,
        400,
        "limits.spin_polls",
        "looks for more to do before a node sleeps (about 0.7 µs each; none where there is one processor, or none helped)",
        low=0,
        high=100_000,
    ),
    works(
        "waitersMax", Type.INT, 100_000, "limits.waiters_max", "calls that may wait at a time, for each kind of wait", low=1
    ),
)

NETTY = in_area(
    "Threads, queues and tuning of Java",
    *no_effect(
        NO_NETTY,
        """
        serverWorkerThreads: int = 8
        serverCallbackExecutorThreads: int = 0
        serverSelectorThreads: int = 3
        serverOnewaySemaphoreValue: int = 256
        serverAsyncSemaphoreValue: int = 64
        serverNettyWorkerGroupEnable: bool = true
        serverPooledByteBufAllocatorEnable: bool = true
        useEpollNativeSelector: bool = false
        clientWorkerThreads: int = 4
        clientCallbackExecutorThreads: int = -
        clientOnewaySemaphoreValue: int = 65535
        clientAsyncSemaphoreValue: int = 65535
        clientPooledByteBufAllocatorEnable: bool = false
        disableCallbackExecutor: bool = false
        disableNettyWorkerGroup: bool = false
        """,
    ),
    *no_effect(
        "the operating system sizes the buffers of sockets",
        """
        serverSocketSndBufSize: int = 0
        serverSocketRcvBufSize: int = 0
        clientSocketSndBufSize: int = 0
        clientSocketRcvBufSize: int = 0
        """,
    ),
    *no_effect(
        "outboxHighWater and outboxLowWater take their place",
        "writeBufferHighWaterMark: int = 0\nwriteBufferLowWaterMark: int = 0",
    ),
    *no_effect(
        "stopping a node always ends its connections in order",
        """
        enableShutdownGracefully: bool = false
        shutdownWaitTimeSeconds: int = 30
        """,
    ),
    *no_effect(
        "a node's connections to others follow fixed rules",
        """
        clientChannelMaxIdleTimeSeconds: int = 120
        channelNotActiveInterval: long = 60000
        isScanAvailableNameSrv: bool = true
        clientCloseSocketIfTimeout: bool = true
        maxReconnectIntervalTimeSeconds: long = 60
        enableReconnectForGoAway: bool = true
        """,
    ),
    refused(
        "proxies are not supported: connections would go around it", "socksProxyConfig", Type.STR, "{}", unless=("", "{}")
    ),
)

TLS = in_area(
    "TLS",
    refused(CLEAR_TEXT, "useTLS", Type.BOOL, False, True),
    refused(CLEAR_TEXT, "tls.enable", Type.BOOL, False, True),
    refused(
        CLEAR_TEXT, "tls.server.mode", Type.ENUM, "permissive", "enforcing", choices=("disabled", "permissive", "enforcing")
    ),
    refused(
        CLEAR_TEXT, "tls.server.need.client.auth", Type.ENUM, "none", "require", choices=("none", "optional", "require")
    ),
    refused(CLEAR_TEXT, "tls.server.authClient", Type.BOOL, False, True),
    *no_effect(
        "TLS is not built yet",
        """
        tls.test.mode.enable: bool = true
        tls.config.file: path = /etc/rocketmq/tls.properties
        tls.server.keyPath: path = -
        tls.server.certPath: path = -
        tls.server.trustCertPath: path = -
        tls.client.keyPath: path = -
        tls.client.certPath: path = -
        tls.client.authServer: bool = false
        tls.client.trustCertPath: path = -
        """,
    ),
    *(
        Row(key=row.key, type=row.type, default=None, status=row.status, text=row.text, secret=True)
        for row in no_effect("TLS is not built yet", "tls.server.keyPassword: str = -\ntls.client.keyPassword: str = -")
    ),
)

ROWS: tuple[Row, ...] = LIMITS + NETTY + TLS
