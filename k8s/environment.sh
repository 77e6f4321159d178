# Sourced by bash before Ray starts in a container: the environment in which Ray Serve runs HAProxy as this service needs it.
# Made once a container; every process of it gets the same.
NESTEDFP_RUN_FOLDER="${NESTEDFP_RUN_FOLDER:-/tmp/nestedfp}"
if [ ! -s "$NESTEDFP_RUN_FOLDER/environment" ]; then
    (
        umask 077
        mkdir -p "$NESTEDFP_RUN_FOLDER" \
            && python -m deploy.environment --config "$NESTEDFP_CONFIG" --folder "$NESTEDFP_RUN_FOLDER" > "$NESTEDFP_RUN_FOLDER/environment.new" \
            && mv "$NESTEDFP_RUN_FOLDER/environment.new" "$NESTEDFP_RUN_FOLDER/environment"
    ) || return 1
fi
. "$NESTEDFP_RUN_FOLDER/environment"
