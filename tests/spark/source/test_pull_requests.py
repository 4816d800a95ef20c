"""The fast writer of pull requests equals the general header writer."""

from hypothesis import given
from hypothesis import strategies as st

from rmqkit.access.signature import Credentials, Key
from rmqkit.spark.source.topic_reader import PullRequests
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, FrameBuffer, frame
from rmqkit.wire.remoting.headers import RequestDecoder, decode_head, encode_request
from rmqkit.wire.remoting.pull_header import read_pull
from rmqkit.wire.schema import to_ext
from rmqkit.wire.schemas.pull import PullMessageRequest


@given(
    st.integers(1, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(1, 2**31 - 1),
    st.sampled_from(["T", "%RETRY%g", "queueOffset"]),
    st.sampled_from(["*", "a || %d", "maxMsgNums", 'ü"']),
)
def test_a_request_is_the_written_header(opaque, offset, count, topic, tags):
    request = PullMessageRequest(
        consumer_group="g", topic=topic, queue_id=3, queue_offset=0, max_msg_nums=1, sys_flag=4, subscription=tags
    )
    made = PullRequests(request).frame(opaque, offset, count)
    request.queue_offset, request.max_msg_nums = offset, count
    header = encode_request(RequestCode.PULL_MESSAGE, opaque, to_ext(request), codec=CODEC_ROCKETMQ)
    assert made == frame(header, codec=CODEC_ROCKETMQ)
    (cut,) = FrameBuffer().feed(made)
    assert RequestDecoder(PullMessageRequest).decode(cut).ext == request
    if offset < 10**18:
        assert read_pull(cut.header) is not None, "brokers of ours read it the fast way"


def test_a_signed_request_has_a_signature_of_its_own():
    key = Key("secret")
    request = PullMessageRequest(
        consumer_group="g", topic="T", queue_id=3, queue_offset=0, max_msg_nums=1, sys_flag=4, subscription="*"
    )
    made = PullRequests(request).frame(7, 25, 32, Credentials("user", "secret").sign)
    (cut,) = FrameBuffer().feed(made)
    head = decode_head(cut)
    assert head.opaque == 7
    assert head.ext_fields is not None
    assert (head.ext_fields["queueOffset"], head.ext_fields["maxMsgNums"]) == ("25", "32")
    assert key.verify(head.ext_fields, b"")
    assert not key.verify({**head.ext_fields, "queueOffset": "26"}, b"")
