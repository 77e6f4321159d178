"""Looks at the service while a plan runs: the samples of the timeline."""

from loadtest.errors import ServiceError
from loadtest.service.admin import ServiceClient
from workload.records import Policy, TimelineSample

MAX_FAILED_POLLS = 20  # in a row: the service is gone


class Sampler:
    """Collects samples. Times are seconds after the start of the plan.

    Args:
        service: what is looked at.
        policy: of the run.
        tells: whether the service has a status; a server without one is not asked.
    """

    def __init__(self, service: ServiceClient, policy: Policy, tells: bool) -> None:
        self.samples: list[TimelineSample] = []
        self._service = service
        self._policy = policy
        self._tells = tells
        self._failed = 0

    def take(self, at_s: float) -> None:
        """Take a sample; one that fails is left out.

        Raises:
            ServiceError: when the status has failed too often in a row.
        """
        status = None
        if self._tells:
            try:
                status = self._service.status()
                self._failed = 0
            except ServiceError:
                self._failed += 1
                if self._failed >= MAX_FAILED_POLLS:
                    raise
                return
        self.samples.append(TimelineSample(policy=self._policy, at_s=at_s, status=status))
