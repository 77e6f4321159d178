"""The control room: a page at ``/control`` that shows what the controller does, and lets an operator override it.

``page`` is what the browser gets, ``feed`` what every open page asks for.
"""
