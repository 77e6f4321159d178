"""python -m docs.draw: draw every picture of the documents into docs/pictures."""

from docs.draw import architecture, bits, burst

for picture in (bits, architecture, burst):
    picture.draw()
