"""The fast writer of pull requests equals the general header writer."""

from hypothesis import given
from hypothesis import strategies as st

from rmqkit.spark.source.pull_requests import PullRequests
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, FrameBuffer, frame
from rmqkit.wire.remoting.headers import RequestDecoder, encode_request
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
