"""The processes of the service and what passes between them."""

from pathlib import Path

from docs.draw.style import CONTROL, FP8, FP16, INK, NEUTRAL, arrow, box, canvas, save


def draw() -> Path:
    """Write ``architecture.svg``."""
    figure, axes = canvas(8.6, 4.2)
    box(axes, 0.2, 1.55, 1.1, 0.8, "clients\nOpenAI API", NEUTRAL)
    box(axes, 2.0, 1.55, 1.2, 0.8, "HAProxy\nleast outstanding,\nrefused → next", NEUTRAL)
    for i, y in enumerate((2.15, 0.35)):
        box(axes, 4.1, y, 4.2, 1.35, "", FP16)
        axes.text(4.2, y + 1.19, f"replica {i + 1}", size=8.5, weight="bold", color=INK)
        box(axes, 4.3, y + 0.25, 1.55, 0.72, "HTTP server\nadmission, disclosure", FP16, 8.5)
        box(axes, 6.55, y + 0.25, 1.6, 0.72, "vLLM engine\nprecision per step", FP16, 8.5)
        arrow(axes, (5.85, y + 0.7), (6.55, y + 0.7))
        arrow(axes, (6.55, y + 0.5), (5.85, y + 0.5))
        arrow(axes, (3.2, 2.02 if i == 0 else 1.88), (4.3, y + 0.61))
        axes.text(7.35, y + 0.12, "weights: upper + lower plane", ha="center", size=7, color=FP8)
    arrow(axes, (1.3, 2.02), (2.0, 2.02))
    arrow(axes, (2.0, 1.88), (1.3, 1.88))
    box(axes, 4.1, 3.68, 4.2, 0.42, "controller: one pure control loop", CONTROL)
    arrow(axes, (4.9, 3.5), (4.9, 3.68), CONTROL)
    axes.text(4.98, 3.59, "snapshot every 100 ms", size=7, va="center", color=CONTROL)
    arrow(axes, (7.9, 3.68), (7.9, 3.5), CONTROL)
    axes.text(7.82, 3.59, "directive: mode, epoch, lease", size=7, va="center", ha="right", color=CONTROL)
    axes.text(
        0.2,
        0.28,
        "No Python process stands between the socket\nof a replica and its engine; the controller is\non no request's path.",
        size=7.5,
        color=INK,
    )
    return save(figure, "architecture")
