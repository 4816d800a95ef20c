"""The requests of a well-behaved client."""

SEND = {
    "producerGroup": "good",
    "topic": "Good",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "1",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "properties": "",
    "reconsumeTimes": "0",
    "unitMode": "false",
}


def pull_from(queue_offset: str) -> dict[str, str]:
    return {
        "consumerGroup": "good",
        "topic": "Good",
        "queueId": "0",
        "queueOffset": queue_offset,
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
