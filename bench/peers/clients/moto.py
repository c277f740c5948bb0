"""moto's SQS server, by SQS's own JSON protocol over plain HTTP. SQS takes ten messages a call at most. Nothing is durable in it."""

import sys
from collections.abc import Sequence
from typing import Any

import orjson

from bench.http import Connections, post

from .turns import Queue, serve

_MOST = 10
_SIGNED = "Authorization: AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=none"


class Sqs(Queue[str]):
    async def open(self) -> None:
        self._connections = Connections(sys.argv[1:])
        self._url = (await self._call("CreateQueue", QueueName="bench"))["QueueUrl"]

    async def send(self, size: int) -> None:
        if size == 1:
            await self._call("SendMessage", QueueUrl=self._url, MessageBody='{"n": 1}')
        for first in range(0, size if size > 1 else 0, _MOST):
            entries = [{"Id": str(each), "MessageBody": '{"n": 1}'} for each in range(min(_MOST, size - first))]
            await self._call("SendMessageBatch", QueueUrl=self._url, Entries=entries)

    async def take(self, size: int) -> Sequence[str]:
        answer = await self._call("ReceiveMessage", QueueUrl=self._url, MaxNumberOfMessages=min(size, _MOST), WaitTimeSeconds=0)
        return [message["ReceiptHandle"] for message in answer.get("Messages", [])]

    async def keep(self, taken: Sequence[str]) -> None:
        await self._each("ChangeMessageVisibility", taken, VisibilityTimeout=300)

    async def finish(self, taken: Sequence[str]) -> None:
        await self._each("DeleteMessage", taken)

    async def _each(self, action: str, receipts: Sequence[str], **options: int) -> None:
        if len(receipts) == 1:
            await self._call(action, QueueUrl=self._url, ReceiptHandle=receipts[0], **options)
        else:
            entries = [{"Id": str(index), "ReceiptHandle": receipt, **options} for index, receipt in enumerate(receipts)]
            answer = await self._call(f"{action}Batch", QueueUrl=self._url, Entries=entries)
            assert len(answer["Successful"]) == len(receipts), answer

    async def _call(self, action: str, **arguments: object) -> Any:
        headers = (f"X-Amz-Target: AmazonSQS.{action}", "Content-Type: application/x-amz-json-1.0", _SIGNED)
        answer = await self._connections.call(post("/", orjson.dumps(arguments), *headers))
        return orjson.loads(answer) if answer else {}


if __name__ == "__main__":
    serve(Sqs())
