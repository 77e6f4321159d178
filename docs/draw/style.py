"""What the plots share: colours that the colour-blind tell apart, and how a plot is written."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

FP16, FP8, NEUTRAL, CONTROL = "#0072b2", "#d55e00", "#6e7781", "#009e73"
PICTURES = Path(__file__).parents[1] / "pictures"


def save(figure: Figure, name: str) -> Path:
    """Write ``docs/pictures/<name>.svg``, the same bytes for the same picture."""
    path = PICTURES / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    FigureCanvasSVG(figure)
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(path, metadata={"Date": None})
    return path
