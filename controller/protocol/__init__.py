"""How a directive reaches every replica: both ends of the protocol, without I/O.

A replica waits in a call to the controller. It is answered when the directive is another one than the caller has seen, and after
``RENEW_S`` to renew the lease; the next call brings the acknowledgement. A call whose answer is lost is made again, and answered
at once. Snapshots bring evidence, and what a replica has in force.

Everything that affects the protocol's state lives in ``publisher`` and ``follower``. Times are seconds of the owner's own
monotonic clock; the two ends never compare clocks. ``content`` means what a directive asks
of one replica: mode, rule and admission scale.

Publisher (the controller), epoch E:

| event                                        | effect                                                    |
|----------------------------------------------|-----------------------------------------------------------|
| set_content, other than the present          | E + 1; nobody has acknowledged                            |
| the operator's word                          | E + 1; nobody has acknowledged                            |
| a replica names an epoch > E                 | its epoch + 1, same content                               |
| one that was not known names E               | E + 1, same content                                       |
| it names E                                   | it has acknowledged                                       |
| it names an epoch < E, or has no lease       | it lags: its call is answered                             |

A replica that names an epoch above ours, or ours before we have told it anything, has heard an earlier controller. Neither happens
twice for the same epoch, so that epochs stay small.

Follower (the replica), epoch F; 0 before the first directive:

| event                                | effect                                                  |
|--------------------------------------|---------------------------------------------------------|
| directive, epoch < F                 | ignored                                                 |
| directive, epoch >= F                | in force, F = epoch; the lease starts anew              |
| the lease runs out                   | the fallback is in force, F stays                       |

The fallback is the operator's order until its own time is over; then what the policy's directives say of it. It turns nobody away:
its admission scale is 1.
"""
