"""What all pictures share: colours that the colour-blind tell apart, and how a picture is written."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

FP16, FP8, NEUTRAL, CONTROL = "#0072b2", "#d55e00", "#6e7781", "#009e73"
INK = "#1f2328"
PICTURES = Path(__file__).parents[1] / "pictures"


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of so many inches, and axes without ticks whose unit is the inch."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str, size: float = 9) -> None:
    """A rounded box with text in its middle; the first line is bold."""
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=colour + "18",
        edgecolor=colour,
        lw=1.4,
    )
    axes.add_patch(shape)
    head, _, rest = text.partition("\n")
    lines = rest.count("\n") + 1 if rest else 0
    middle = y + height / 2
    axes.text(
        x + width / 2, middle + 0.085 * lines, head, ha="center", va="center", size=size, weight="bold", color=INK
    )
    if rest:
        axes.text(x + width / 2, middle - 0.1, rest, ha="center", va="center", size=size - 1.5, color=INK)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, text: str = "", **place: float
) -> None:
    """An arrow; ``text`` stands beside its middle, moved by ``dx`` and ``dy``."""
    style = {"arrowstyle": "-|>", "color": colour, "lw": 1.3, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 10}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)
    if text:
        x, y = (start[0] + end[0]) / 2 + place.get("dx", 0.0), (start[1] + end[1]) / 2 + place.get("dy", 0.12)
        axes.text(x, y, text, ha="center", va="center", size=7.5, color=colour)


def save(figure: Figure, name: str) -> Path:
    """Write ``docs/pictures/<name>.svg``, the same bytes for the same picture."""
    path = PICTURES / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    FigureCanvasSVG(figure)
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(path, metadata={"Date": None})
    return path
