"""Answers InitProducerId: gives idempotent producers their ids."""

from __future__ import annotations

from gateway.api import BrokerApi
from gateway.kafka.call import KafkaCall
from gateway.kafka.errors import ErrorCode, group_code
from gateway.kafka.protocol.client_messages import InitProducerIdRequest, InitProducerIdResponse
from metadata.errors import TidelogError


class KafkaProducerIds:
    """Answers InitProducerId for all Kafka listeners of a broker."""

    def __init__(self, broker: BrokerApi) -> None:
        self._broker = broker

    async def init_producer_id(self, call: KafkaCall, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Answers with a new producer id, even if the producer has one: producers raise their epochs themselves, as with Kafka."""
        if request.transactional_id is not None:
            return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        try:
            return InitProducerIdResponse(producer_id=self._broker.producer_ids.next(), producer_epoch=0)
        except TidelogError as error:
            return InitProducerIdResponse(error_code=_code(error), producer_epoch=-1)


def _code(error: TidelogError) -> int:
    """Returns the code of the error, and never one of a coordinator.

    Java's producer would look the coordinator up by its transactional id, which is null.
    """
    code = group_code(error)
    is_of_coordinator = code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_of_coordinator else code
