"""Groups and their members at a broker: 34, 35, 38, 201, 203, 204, 207, 208, 223, 345, 352."""

import msgspec

from rmqkit.wire.schema import Ext, Int32


class UnregisterClientRequest(Ext, kw_only=True):
    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequest(Ext, kw_only=True):
    consumer_group: str


class GetAllSubscriptionGroupRequest(Ext, kw_only=True):
    """201: with all fields absent, the response has all groups."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetAllSubscriptionGroupResponse(Ext, kw_only=True):
    total_group_num: Int32 | None = None


class DeleteSubscriptionGroupRequest(Ext, kw_only=True):
    group_name: str
    clean_offset: bool = False


class GetSubscriptionGroupConfigRequest(Ext, kw_only=True):
    group: str


class GetConsumerConnectionListRequest(Ext, kw_only=True):
    consumer_group: str


class GetProducerConnectionListRequest(Ext, kw_only=True):
    producer_group: str


class GetConsumeStatsRequest(Ext, kw_only=True):
    """208: `topic_list` is a list of topics separated by `;`."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class QuerySubscriptionByConsumerRequest(Ext, kw_only=True):
    group: str
    topic: str | None = None


class UpdateGroupForbiddenRequest(Ext, kw_only=True):
    """353: with `readable` absent, only query the current value."""

    group: str
    topic: str
    readable: bool | None = None


class GetConsumerStatusRequest(Ext, kw_only=True):
    """223 (admin to broker) and 221 (broker to client)."""

    topic: str
    group: str
    client_addr: str | None = None
