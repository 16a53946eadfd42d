"""Types of fetch.pyx; the documentation stands there."""
from typing import Any

from kbroker.apis.context import Api
from kbroker.apis.frame_handler import FrameHandler
from kbroker.apis.waiting import Waiter
from kbroker.errors import ErrorCode
from kbroker.topics.partition import Partition

API: Api

class Fetch(Waiter):
    def look_again(self) -> None: ...
    def answer_now(self) -> None: ...
    def give_up(self) -> None: ...

class FetchHandler(FrameHandler): ...

def check_leader_epoch(partition: Partition, current_leader_epoch: int) -> None: ...
def error_response(request: Any, code: ErrorCode, message: str, version: int) -> Any: ...
