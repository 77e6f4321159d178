"""The replica's end of the control plane: snapshots out, directives in, and the engine made to follow them."""
