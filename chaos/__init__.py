"""The fault campaign: a service is killed, stopped and attacked part by part under a steady load; what that costs is measured."""
