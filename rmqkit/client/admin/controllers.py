"""Admin: controllers, rmqkit's and Apache's (1002, 1005, 1006, 1011).

A controller is given as `host:port`. All but 1005 are answered by the leader of the group only; any
member of the group names it. Followers of a leader that is gone name it until a new one is elected.

Source: `tools/.../admin/DefaultMQAdminExtImpl.java`, `tools/.../command/controller/*.java`.
"""

from collections.abc import Sequence

from rmqkit.client.admin.groups import AdminCore
from rmqkit.client.client import decoded, fields
from rmqkit.errors import ClientError, PeerUnreachable
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import BrokerReplicasInfo, ReplicasInfo, encode_names
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.controller import (
    CleanControllerBrokerDataRequest,
    ElectMasterRequest,
    ElectMasterResponse,
    GetMetaDataResponse,
)


async def controller_metadata(admin: AdminCore, controller: str) -> GetMetaDataResponse:
    """Return what a controller knows of its group: its peers and their leader.

    Args:
        controller: The controller, `host:port`.
    """
    reply = await admin.client.ask(_address(controller), RequestCode.CONTROLLER_GET_METADATA_INFO)
    return fields(reply, GetMetaDataResponse)


async def controller_leader(admin: AdminCore, controllers: Sequence[str]) -> str:
    """Return the address of the controller that leads.

    Args:
        controllers: Controllers of one group; the first one that knows the leader decides.

    Raises:
        PeerUnreachable: If none of them answers.
        ClientError: If none of those that answer knows a leader.
    """
    errors: list[ClientError] = []
    for each in controllers:
        try:
            found = await controller_metadata(admin, each)
        except ClientError as error:
            errors.append(error)
            continue
        if found.controller_leader_address:
            return found.controller_leader_address
        errors.append(ClientError(f"{each} knows no leader"))
    text = "; ".join(map(str, errors)) or "no controller is given"
    silent = [error for error in errors if isinstance(error, PeerUnreachable)]
    if silent and len(silent) == len(errors):
        raise PeerUnreachable(text, kind=silent[-1].kind, address=silent[-1].address)
    raise ClientError(text)


async def broker_sets(admin: AdminCore, controllers: Sequence[str], names: Sequence[str]) -> dict[str, ReplicasInfo]:
    """Return the members of broker sets by broker name. Unknown names are left out.

    Args:
        controllers: Controllers of one group.
        names: Broker names.
    """
    leader = await controller_leader(admin, controllers)
    reply = await admin.client.ask(_address(leader), RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, encode_names(names))
    return decoded(reply, BrokerReplicasInfo.decode).replicas_info_table if reply.body else {}


async def elect_master(
    admin: AdminCore, controllers: Sequence[str], broker_name: str, broker_id: int, *, cluster: str = ""
) -> ElectMasterResponse:
    """Make a member of a broker set its master. It must be alive and in the SyncStateSet.

    Args:
        controllers: Controllers of one group.
        broker_name: The broker name.
        broker_id: The id that the controllers gave to the broker.
        cluster: The cluster of the set, which Apache's controllers require.

    Returns:
        The master and its epoch. If the broker is master already, the epoch is that of before.
    """
    leader = _address(await controller_leader(admin, controllers))
    request = ElectMasterRequest(cluster_name=cluster, broker_name=broker_name, broker_id=broker_id, designate_elect=True)
    accept = frozenset({ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST})
    reply = await admin.client.ask(leader, RequestCode.CONTROLLER_ELECT_MASTER, request, accept=accept)
    return fields(reply, ElectMasterResponse)


async def clean_brokers(
    admin: AdminCore,
    controllers: Sequence[str],
    broker_name: str,
    broker_ids: Sequence[int] = (),
    *,
    cluster: str = "",
    living: bool = False,
) -> None:
    """Remove brokers from a broker set for good, or the whole set.

    Args:
        controllers: Controllers of one group.
        broker_name: The broker name.
        broker_ids: Ids of the brokers. Empty: the whole set.
        cluster: The cluster of the set, which Apache's controllers require.
        living: Also brokers that are alive. An Apache controller then removes the whole set,
            whatever `broker_ids` says.
    """
    leader = _address(await controller_leader(admin, controllers))
    request = CleanControllerBrokerDataRequest(
        cluster_name=cluster or None,
        broker_name=broker_name,
        broker_controller_ids_to_clean=";".join(map(str, broker_ids)) or None,
        is_clean_living_broker=living,
    )
    await admin.client.ask(leader, RequestCode.CLEAN_BROKER_DATA, request)


def _address(controller: str) -> Address:
    try:
        return Address.parse(controller)
    except ValueError as error:
        raise ClientError(f"controller {error}") from None
