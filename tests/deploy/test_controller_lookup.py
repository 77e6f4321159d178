"""Which application a controller speaks to."""

import warnings

import pytest

from deploy.control.controller_lookup import application_of


def test_the_application_is_in_the_name_that_serve_gives_the_actor() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, while it is imported
        from ray.serve._private.common import DeploymentID
        from ray.serve._private.utils import get_deployment_actor_name
    deployment = DeploymentID("NestedFPServer:demo", "second")
    name = get_deployment_actor_name(deployment, actor_name="nestedfp_controller", code_version="v1")
    assert application_of(name) == "second"


@pytest.mark.parametrize("name", [None, "", "nestedfp_controller", "SERVE_REPLICA::a::b::c", "a::b::c::d::e"])
def test_other_actors_belong_to_none(name: str | None) -> None:
    assert application_of(name) is None
